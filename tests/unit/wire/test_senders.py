"""What is believed of whom, by the subject that a batch came on."""

import pytest

from controlplane.core.model import events as ev
from controlplane.transport.authorization import authorize
from controlplane.transport.subjects import event_subject
from controlplane.wire.codec import decode_events, encode_events

ARRIVED = ev.ProgramArrived(program_id="p")
QUEUED = ev.TurnQueued(program_id="p", turn_id="t")
ENDED = ev.TurnEnded(program_id="p", turn_id="t")
TOOL = ev.ToolStarted(program_id="p", call_id="c", tool="bash")
POOL = ev.PoolSampled(total_blocks=1, free_blocks=1)
HOST = ev.HostSampled(cpus=1)
ORDERS = ev.OperatorOrders(draining=True)
OPEN_TOOL = ev.OpenTool(program_id="p", call_id="c", tool="bash", started=True)


def told(role: str, *events: ev.Event, publisher: str = "", subject: str = "") -> tuple[list[str], list[str]]:
    """The names of the events that are believed, and what is said of the others."""
    data = encode_events(publisher or f"n/{role}/boot", 1, [(0, event) for event in events])
    good, refused = authorize(decode_events(data), subject or event_subject("n", role))
    return [type(event).__name__ for event in good], refused


@pytest.mark.parametrize(
    ("role", "events"),
    [
        ("engine", [ENDED, POOL, ARRIVED, ev.PublisherState(role="engine", grants=(ev.Grant(program_id="p"),))]),
        ("engine-30000", [ENDED, POOL]),
        ("gate", [QUEUED, ev.ProgramEnded(program_id="p"), ev.PublisherState(role="gate")]),
        ("gate-30000", [ev.ReplyRead(program_id="p", turn_id="t"), ev.CommandApplied(command_id=1)]),
        ("tool", [ARRIVED, TOOL, ev.PublisherState(role="tool", open_tools=(OPEN_TOOL,))]),
        ("tool", [ev.ReplyRead(program_id="p", turn_id="t"), ev.ProgramEnded(program_id="p")]),
        ("host", [HOST]),
        ("control", [ORDERS]),
    ],
)
def test_what_is_ones_own_to_tell_is_believed(role: str, events: list[ev.Event]) -> None:
    assert told(role, *events) == ([type(event).__name__ for event in events], [])


ONLY = {
    "tool": "runs and tools",
    "engine": "turns and the KV pool",
    "gate": "turns and the KV pool",
    "host": "samples of the host",
    "control": "an operator's orders",
}
GRANT = ev.Grant(program_id="p")


@pytest.mark.parametrize(
    ("role", "events"),
    [
        ("tool", [ENDED, QUEUED, POOL, HOST, ORDERS, ev.CommandApplied(command_id=1)]),
        ("tool", [ev.PublisherState(role="engine"), ev.PublisherState(role="tool", grants=(GRANT,))]),
        ("engine", [TOOL, ORDERS]),
        ("gate", [ev.PublisherState(role="tool"), ev.PublisherState(role="gate", open_tools=(OPEN_TOOL,))]),
        ("host", [ORDERS]),
        ("control", [HOST, ev.PublisherState(role="engine")]),
    ],
)
def test_what_is_not_is_left_out(role: str, events: list[ev.Event]) -> None:
    assert told(role, *events) == (
        [],
        [f"{type(event).__name__}: only {ONLY[role]} are told here" for event in events],
    )


def test_one_wrong_event_does_not_take_the_others_with_it() -> None:
    assert told("tool", ARRIVED, ENDED, TOOL) == (
        ["ProgramArrived", "ToolStarted"],
        ["TurnEnded: only runs and tools are told here"],
    )


@pytest.mark.parametrize(
    "publisher", ["n/engine/boot", "other/tool/boot", "n/tool/boot/more", "n/tool-2/boot", "tool"]
)
def test_nobody_speaks_in_anothers_name(publisher: str) -> None:
    assert told("tool", ARRIVED, publisher=publisher) == (
        [],
        [f"publisher {publisher!r}: expected n/tool/BOOT"],
    )


def test_a_role_that_nobody_knows_tells_nothing() -> None:
    assert told("visitor", ARRIVED) == ([], ["nobody tells anything as 'visitor'"])


def test_an_engines_port_was_part_of_one_token_before() -> None:
    """Engines with a plugin of an earlier version go on."""
    assert told("engine-30000", POOL, subject="penstock.v1.n.event.engine-30000") == (["PoolSampled"], [])
