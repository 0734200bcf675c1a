"""Names on the bus."""

from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.transport import endpoint, subjects
from controlplane.transport.roles import BusRole, user_name


def test_subjects_lie_below_their_node() -> None:
    assert subjects.event_subject("gpu-1", "engine") == "penstock.v1.gpu-1.event.engine"
    assert subjects.event_subject("gpu-1", "engine-30000") == "penstock.v1.gpu-1.event.engine.30000"
    assert subjects.all_events_subject("gpu-1") == "penstock.v1.gpu-1.event.>"
    assert subjects.command_subject("gpu-1") == "penstock.v1.gpu-1.command"
    assert subjects.tool_command_subject("gpu-1") == "penstock.v1.gpu-1.command.tool"
    assert subjects.heartbeat_subject("gpu-1") == "penstock.v1.gpu-1.heartbeat"
    assert subjects.status_subject("gpu-1") == "penstock.v1.gpu-1.status"
    assert subjects.stream_name("gpu-1") == "PENSTOCK-gpu-1"


@pytest.mark.parametrize("role", ["engine", "engine-30000", "gate-a-b", "tool", "a-", "-a", "-"])
def test_a_subject_tells_the_role(role: str) -> None:
    subject = subjects.event_subject("gpu-1", role)
    assert subjects.role_of_subject(subject) == role
    assert all(subject.split("."))


def test_what_is_no_events_subject_tells_no_role() -> None:
    assert subjects.role_of_subject(subjects.command_subject("gpu-1")) == ""


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a/b", "é", "x" * 65, "a\n"])
def test_a_name_that_would_break_a_subject_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected node to be 1 to 64 letters") as caught:
        subjects.event_subject(name, "engine")
    assert caught.value.field == "node"


def test_the_refusal_suggests_a_name() -> None:
    with pytest.raises(ConfigError, match="'gpu-1-example-com' would do"):
        subjects.command_subject("gpu-1.example.com")


def test_nodes_whose_names_are_alike_share_nothing() -> None:
    """One server may carry them all, and one folder their files."""
    nodes = ["a", "A", "a-", "a-b", "a_b", "ab", "a-engine", "a-engine-30000", "event", "command", "status"]
    roles = ["engine", "engine-30000", "gate-30000", "tool", "host", "control"]
    said = {node: {subjects.event_subject(node, role) for role in roles} for node in nodes}
    for node in nodes:
        said[node] |= {subjects.command_subject(node), subjects.tool_command_subject(node)}
        said[node] |= {subjects.heartbeat_subject(node), subjects.status_subject(node)}
        assert all(node_of(subject) == node for subject in said[node])
    for node in nodes:
        others = set().union(*(said[other] for other in nodes if other != node))
        everything = subjects.all_events_subject(node).removesuffix(">")
        assert not said[node] & others
        assert not [subject for subject in others if subject.startswith(everything)]
    for names in (
        [subjects.stream_name(node) for node in nodes],
        [endpoint.endpoint_path(node, Path("/state")) for node in nodes],
        [endpoint.socket_path(node, Path("/state")) for node in nodes],
        [user_name(node, role) for node in nodes for role in BusRole],
        [subjects.publisher_name(node, role, "0") for node in nodes for role in roles],
    ):
        assert len(set(names)) == len(names)


def node_of(subject: str) -> str:
    """The node that a subject lies below."""
    return subject.removeprefix(f"{subjects.PREFIX}.").partition(".")[0]
