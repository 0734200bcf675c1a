"""What is believed of whom, by the subject that a batch came on."""

import pytest

from controlplane.core import events as ev
from controlplane.wire.codec import decode_events, encode_events
from controlplane.wire.senders import believed
from controlplane.wire.subjects import event_subject

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
    good, refused = believed(decode_events(data), subject or event_subject("n", role))
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


@pytest.mark.parametrize(
    ("role", "event", "why"),
    [
        ("tool", ENDED, "TurnEnded: only runs and tools are told here"),
        ("tool", QUEUED, "TurnQueued: only runs and tools are told here"),
        ("tool", POOL, "PoolSampled: only runs and tools are told here"),
        ("tool", HOST, "HostSampled: only runs and tools are told here"),
        ("tool", ORDERS, "OperatorOrders: only runs and tools are told here"),
        ("tool", ev.CommandApplied(command_id=1), "CommandApplied: only runs and tools are told here"),
        ("tool", ev.PublisherState(role="engine"), "PublisherState: only runs and tools are told here"),
        (
            "tool",
            ev.PublisherState(role="tool", grants=(ev.Grant(program_id="p"),)),
            "PublisherState: only runs and tools are told here",
        ),
        ("engine", TOOL, "ToolStarted: only turns and the KV pool are told here"),
        ("engine", ORDERS, "OperatorOrders: only turns and the KV pool are told here"),
        ("gate", ev.PublisherState(role="tool"), "PublisherState: only turns and the KV pool are told here"),
        (
            "gate",
            ev.PublisherState(role="gate", open_tools=(OPEN_TOOL,)),
            "PublisherState: only turns and the KV pool",
        ),
        ("host", ORDERS, "OperatorOrders: only samples of the host are told here"),
        ("control", HOST, "HostSampled: only an operator's orders are told here"),
        ("control", ev.PublisherState(role="engine"), "PublisherState: only an operator's orders are told here"),
    ],
)
def test_what_is_not_is_left_out_and_the_rest_is_believed(role: str, event: ev.Event, why: str) -> None:
    good, refused = told(role, event)
    assert (good, [line[: len(why)] for line in refused]) == ([], [why])


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
