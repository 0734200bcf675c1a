"""Whose turn a request is."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.gate.identity import BadIdentity, identify

UUID = "3d0bd4d4-21b0-4d15-9f6c-6a1d92d2ab11"
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)

# The first text that hypothesis draws makes it read its tables, which takes a busy machine a while.
_patient = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)


@pytest.mark.parametrize(
    ("headers", "body", "program_id"),
    [
        ({"x-penstock-program-id": "p"}, {"program_id": "q"}, "p"),
        ({"X-LiteLLM-Session-Id": "s"}, {"program_id": "p"}, "p"),
        ({"x-litellm-session-id": "s"}, {"custom_params": {"program_id": "p"}}, "p"),
        ({"x-litellm-session-id": "s"}, {"vllm_xargs": {"program_id": "p"}}, "p"),
        ({}, {"vllm_xargs": {"session_id": "t"}}, "t"),
        ({"x-litellm-session-id": "s"}, {"session_id": "t"}, "s"),
        ({"x-session-id": "s"}, {}, "s"),
        ({"x-claude-code-session-id": "s"}, {}, "s"),
        ({"x-smg-routing-key": "s"}, {}, "s"),
        ({}, {"session_id": "t"}, "t"),
        ({}, {"session_params": {"id": "t"}}, "t"),
        ({}, {"metadata": {"session_id": "t"}}, "t"),
        ({"x-correlation-id": "c"}, {"session_id": "t"}, "t"),
        ({"gen_ai.conversation.id": "c", "gen_ai.agent.id": "a"}, {"prompt_cache_key": "k"}, "c"),
        ({}, {"conversation": "conv_1"}, "conv_1"),
        ({}, {"conversation": {"id": "conv_2"}}, "conv_2"),
        ({}, {"metadata": {"user_id": "user_ab_account_cd_session_ef-01"}}, "ef-01"),
        ({}, {"metadata": {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "ef-02"}'}}, "ef-02"),
        ({"x-claude-code-session-id": "s"}, {"metadata": {"user_id": "u_session_t"}}, "s"),
        ({}, {"session_id": 17}, "17"),
        ({"x-session-id": ""}, {"session_id": "t"}, "t"),
    ],
)
def test_the_most_explicit_identity_wins(headers: dict[str, str], body: dict[str, Any], program_id: str) -> None:
    identity = identify([(name.encode(), value.encode()) for name, value in headers.items()], body)
    assert identity.program_id == program_id
    assert not identity.anonymous


def test_requests_that_name_nobody_share_nothing() -> None:
    identities = [identify([], {"metadata": "none", "session_id": None, "user": "u"}) for _ in range(100)]
    assert len({identity.program_id for identity in identities}) == 100
    assert all(identity.anonymous for identity in identities)


@pytest.mark.parametrize(
    "user", ["somebody", "", "7", "[]", "{}", '{"session_id": 1}', "a_session_", 7, {"id": "u"}]
)
def test_a_user_alone_is_no_program(user: object) -> None:
    assert identify([], {"metadata": {"user_id": user}}).anonymous


def test_parent_and_tenant_travel_along() -> None:
    headers = [(b"x-penstock-parent-id", b"root"), (b"x-penstock-tenant", b"team")]
    identity = identify(headers, {"program_id": "p"})
    assert (identity.parent_id, identity.tenant) == ("root", "team")
    assert identify([], {"program_id": "p", "parent_id": "p"}).parent_id == ""


@pytest.mark.parametrize("bad", ["x" * 257, "a\x00b", "a\nb", "\ud800", ["p"], {"p": 1}, True, 1.5])
def test_a_bad_identity_meant_for_us_is_refused_and_says_where(bad: object) -> None:
    for field in ("program_id", "parent_id", "tenant"):
        with pytest.raises(BadIdentity, match=f"body {field}"):
            identify([], {field: bad})


def test_a_bad_identity_meant_for_others_becomes_its_digest() -> None:
    first = identify([(b"x-session-id", b"x" * 300)], {})
    again = identify([(b"x-session-id", b"x" * 300)], {})
    other = identify([(b"x-session-id", b"x" * 301)], {})
    assert first.program_id == again.program_id != other.program_id
    assert first.program_id.startswith("sha256-")
    assert identify([], {"session_id": "\ud800"}).program_id.startswith("sha256-")


@_patient
@given(st.dictionaries(st.sampled_from(["session_id", "metadata", "session_params", "prompt_cache_key"]), _JSON))
def test_whatever_others_send_names_a_program_that_can_be_written_down(body: dict[str, Any]) -> None:
    identity = identify([], body)
    assert 0 < len(identity.program_id) <= 256
    identity.program_id.encode("utf-8")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", False),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01; drop", False),
        ("", False),
    ],
)
def test_the_clients_trace_travels_along_if_it_is_one(sent: str, kept: bool) -> None:
    assert identify([(b"Traceparent", sent.encode())], {}).trace == (sent if kept else "")


def test_ids_are_compared_as_they_are_written() -> None:
    """Other letters, composed letters and letters with marks are other programs, wherever a request names them."""
    alike = ["Café", "café", "CAFÉ", "cafe\u0301", "cafe", "ｃａｆé", "caf\u00e9\u0301"]
    by_header = [identify([(b"x-penstock-program-id", name.encode())], {}).program_id for name in alike]
    by_body = [identify([], {"program_id": name}).program_id for name in alike]
    assert by_header == by_body == alike
    assert len(set(alike)) == len(alike)


@pytest.mark.parametrize(
    ("headers", "program_id", "parent_id"),
    [
        ({}, "s", ""),
        ({"x-claude-code-agent-id": "a"}, "s/a", "s"),
        ({"x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"}, "s/b", "s/a"),
        ({"x-claude-code-parent-agent-id": "a"}, "s", ""),
        ({"x-claude-code-agent-id": "a", "x-penstock-program-id": "own"}, "own", ""),
        ({"x-claude-code-agent-id": "a", "x-session-id": "t"}, "t", ""),
    ],
)
def test_claude_codes_sub_agents_are_programs_within_their_session(
    headers: dict[str, str], program_id: str, parent_id: str
) -> None:
    told = {"x-claude-code-session-id": "s", **headers}
    identity = identify([(name.encode(), value.encode()) for name, value in told.items()], {})
    assert (identity.program_id, identity.parent_id) == (program_id, parent_id)
    assert identity.within is bool(parent_id)


def test_a_sub_agents_name_is_made_good() -> None:
    told = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a" * 400}
    identity = identify([(name.encode(), value.encode()) for name, value in told.items()], None)
    assert identity.program_id.startswith("sha256-")
    assert identity.parent_id == "s"


@pytest.mark.parametrize(
    ("headers", "body", "program_id", "parent_id", "within"),
    [
        ({"thread-id": "root", "session-id": "root"}, {"prompt_cache_key": "root"}, "root", "", False),
        ({"thread-id": "sub", "session-id": "root"}, {}, "sub", "root", True),
        ({"thread-id": "s2", "session-id": "root", "x-codex-parent-thread-id": "sub"}, {}, "s2", "sub", True),
        ({"thread_id": "sub", "x-codex-parent-thread-id": "root"}, {}, "sub", "root", False),
        ({"thread-id": "undefined", "session-id": "root"}, {}, "root", "", False),
        ({"x-opencode-session": "sub", "x-parent-session-id": "main"}, {}, "sub", "main", False),
        ({"x-session-id": "sub", "x-parent-session-id": f"ses_{'0' * 26}"}, {}, "sub", f"ses_{'0' * 26}", True),
        ({"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": UUID}, {}, "d", UUID, True),
        ({"x-session-id": "sub", "x-parent-session-id": "null"}, {}, "sub", "", False),
        ({"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "c"}, {}, "d", "c", False),
        ({}, {"nvext": {"agent_context": {"session_id": "d", "parent_session_id": "c"}}}, "d", "c", False),
        ({}, {"vllm_xargs": {"agentic_context": {"program": "p", "parent": "q"}}}, "p", "q", False),
        ({}, {"session_id": "s", "parent_session_id": "r"}, "s", "r", False),
        ({"x-kilocode-taskid": "k", "x-session-id": "s"}, {}, "k", "", False),
        ({"x-sgl-routing-key": "r"}, {}, "r", "", False),
        ({"x-session-id": "s", "x-parent-session-id": "r", "x-penstock-parent-id": "own"}, {}, "s", "own", False),
        ({"x-session-id": "s"}, {"parent_session_id": {"id": "r"}}, "s", "", False),
    ],
)
def test_agents_and_gateways_name_programs_and_their_parents_in_their_own_words(
    headers: dict[str, str], body: dict[str, Any], program_id: str, parent_id: str, within: bool
) -> None:
    identity = identify([(name.encode(), value.encode()) for name, value in headers.items()], body)
    assert (identity.program_id, identity.parent_id, identity.within) == (program_id, parent_id, within)


def test_a_user_is_no_program_and_a_correlation_is_a_hint_at_one() -> None:
    """The one is who asks, the other is made anew for each request by many who send it."""
    assert identify([(b"x-request-id", b"r")], {"safety_identifier": "u", "user": "u"}).hint == ""
    identity = identify([(b"x-correlation-id", b"c"), (b"x-request-id", b"r")], {"safety_identifier": "u"})
    assert (identity.anonymous, identity.hint, identity.source) == (True, "c", "header x-correlation-id")
