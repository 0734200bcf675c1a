"""Whose sandbox is asleep, who wakes and when, and who is let in beside what is awake."""

from collections.abc import Callable

import pytest
from support.core_driver import Driver, fixed, of

from controlplane.core.ledger.apply_command import apply_command
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.steps import run
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.freezing import FreezeRules, wake_ahead
from controlplane.core.scheduling.hold_reasons import Reason
from controlplane.core.scheduling.rules_and_state import ControlRules

GIB = 1 << 30


def driver(window: int = 1, *, freeze: bool = True, after_s: float = 2.0, memory_gb: float = 0.0) -> Driver:
    rules = FreezeRules(freeze=freeze, after_s=after_s, memory_gb=memory_gb)
    return Driver(fixed(window), ControlRules(sandboxes=rules, stall_s=600))


def sandbox(d: Driver, name: str, **fields: object) -> None:
    d.send(d.tools(ev.SandboxSampled, program_id=name, **fields))


def told(d: Driver, after_s: float = 0.0) -> tuple[list[str], list[str]]:
    """Whose sandbox is to be frozen now, and whose to be thawed; each of which its host does."""
    commands = d.tick(after_s)
    frozen, awake = of(cmd.Freeze, commands), of(cmd.Thaw, commands)
    for each in frozen:
        sandbox(d, each.program_id, frozen=True, awake_bytes=GIB, held_bytes=GIB // 4, took_ns=seconds(0.01))
    for each in awake:
        sandbox(d, each.program_id, awake_bytes=GIB, held_bytes=GIB, took_ns=seconds(0.01))
    return [each.program_id for each in frozen], [each.program_id for each in awake]


def held(d: Driver) -> None:
    d.ask("p")


def answered_and_rests(d: Driver) -> None:
    d.run_turn("p", calls=0)


def paused_in_a_gap_that_may_be_a_tool(d: Driver) -> None:
    d.run_turn("p", calls=1, tool="bash")
    apply_command(d.ledger, cmd.Pause(program_id="p"), d.now_ns)


def held_while_a_tool_runs(d: Driver) -> None:
    d.ask("p")
    d.send(d.tools(ev.ToolStarted, program_id="p", call_id="c", tool="serve"))


def held_while_a_tool_waits(d: Driver) -> None:
    d.ask("p")
    d.send(d.tools(ev.ToolEnqueued, program_id="p", call_id="c", tool="make", wants_slot=True))


def held_while_another_turn_runs(d: Driver) -> None:
    d.ask("p", "p.2")
    d.submit("p", "p.1")


def held_while_its_child_runs(d: Driver) -> None:
    d.ask("p")
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="p"))
    d.submit("child")


def in_the_engine(d: Driver) -> None:
    d.submit("p")


def ended(d: Driver) -> None:
    d.ask("p")
    d.end("p")


@pytest.mark.parametrize(
    ("state", "sleeps"),
    [
        (held, True),
        (answered_and_rests, True),
        (paused_in_a_gap_that_may_be_a_tool, False),
        (held_while_a_tool_runs, False),
        (held_while_a_tool_waits, False),
        (held_while_another_turn_runs, False),
        (held_while_its_child_runs, False),
        (in_the_engine, False),
        (ended, False),
    ],
)
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("freeze", [True, False])
def test_who_waits_sleeps_and_nobody_else(
    state: Callable[[Driver], None], sleeps: bool, registered: bool, freeze: bool
) -> None:
    d = driver(freeze=freeze)
    d.submit("runs")
    if registered:
        sandbox(d, "p")
    state(d)
    seen = [told(d, 1.0)[0] for _ in range(9)]
    assert seen[0] == [], "it waits for a while first"
    assert [name for names in seen for name in names] == (["p"] if sleeps and registered and freeze else [])


def test_it_wakes_as_it_is_let_in_and_sleeps_no_sooner_than_after_a_while() -> None:
    d = driver()
    d.submit("runs")
    sandbox(d, "p")
    d.ask("p")
    assert told(d, 1) == ([], []), "it has just come"
    assert told(d, 2) == (["p"], [])
    d.finish("runs")
    d.end("runs")
    commands = d.tick()
    assert [type(each) for each in commands if isinstance(each, cmd.Admit | cmd.Thaw)] == [cmd.Admit, cmd.Thaw]


def test_a_tool_that_nobody_foresaw_wakes_it_at_once() -> None:
    d = driver()
    d.submit("runs")
    sandbox(d, "p")
    d.ask("p")
    assert told(d, 3) == (["p"], [])
    d.send(d.tools(ev.ToolStarted, program_id="p", call_id="c", tool="make"))
    assert told(d) == ([], ["p"])
    d.send(d.tools(ev.ToolEnded, program_id="p", call_id="c", tool="make", duration_ns=1))
    assert told(d, 1) == ([], [])
    assert told(d, 2) == (["p"], [])


def test_a_command_that_nobody_obeys_is_said_again() -> None:
    d = driver(after_s=0)
    d.submit("runs")
    sandbox(d, "p")
    d.ask("p")
    asked = [len(of(cmd.Freeze, d.tick(1))) for _ in range(5)]
    assert asked == [1, 0, 1, 0, 1]


def test_the_next_of_the_queue_are_awake_where_waking_takes_longer_than_a_turn() -> None:
    d = driver(after_s=0)
    d.submit("runs")
    for name in ("a", "b", "c"):
        sandbox(d, name)
        d.ask(name)
    assert told(d, 1)[0] == ["a", "b", "c"]
    d.ledger.sandboxes.wakes_ns = [seconds(10)]
    d.ledger.estimates.departures.queued_ns = seconds(100)
    d.ledger.estimates.departures.ends_ns = [seconds(each) for each in range(0, 80, 10)]
    assert wake_ahead(d.ledger) == 2, "15 s, of which each takes 12.5"
    assert told(d, 1) == ([], ["a", "b"])
    d.ledger.estimates.service.add(seconds(40))
    assert wake_ahead(d.ledger) == 1, "a turn takes 10 s at least"


def test_late_wakes_are_counted_and_lengthen_the_lead() -> None:
    d = driver()
    sandbox(d, "p", frozen=True)
    sandbox(d, "p", took_ns=seconds(0.5), late_ns=seconds(0.2))
    sandboxes = d.ledger.sandboxes
    assert (sandboxes.woken, sandboxes.late, sandboxes.wakes_ns) == (1, 1, [seconds(0.7)])


def test_who_finds_no_host_memory_waits_and_what_is_frozen_counts_for_what_it_keeps() -> None:
    d = driver(window=10, memory_gb=2.0)
    d.submit("runs")
    sandbox(d, "runs", awake_bytes=GIB, held_bytes=GIB)
    for name in ("a", "b"):
        sandbox(d, name, frozen=True, awake_bytes=GIB, held_bytes=GIB // 4)
        d.ask(name)
    commands = d.tick()  # 1.5 GiB are held; either needs three quarters more, and nobody's half is enough
    assert of(cmd.Admit, commands) == []
    assert d.controller.holds.now("a").reason is Reason.HOST_MEMORY
    d.finish("runs")
    d.end("runs")
    sandbox(d, "runs", gone=True)
    assert d.admitted() == ["a", "b"], "0.5 GiB are held"


def test_a_publisher_that_is_gone_has_no_sandboxes() -> None:
    d = driver()
    sandbox(d, "p")
    run(d.ledger.publisher_states.forget(d.tools.name, d.now_ns))
    assert d.ledger.sandboxes.known == {}
