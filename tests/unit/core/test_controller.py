"""BalanceAndAdmit and what surrounds it: order, slots, backfill, overdue, the safety valve, families, recall."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.types import Pressure, QueuedProgram, Status, seconds
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.packing.least_left import LeastLeft
from controlplane.core.policies.packing.pressure_aware import PressureAware
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import PackingPolicy

# Admission


def test_the_next_tick_sees_what_this_one_granted() -> None:
    """Two ticks before the engine reports must not spend the same headroom twice."""
    d = Driver(PRESETS["mars"])
    d.pool(total=1200)  # of which four fifths may be filled
    for number in range(8):
        d.ask(f"p{number}", tokens=300)
    first = d.admitted()
    d.send(d.gate(ev.TurnAbandoned, program_id="nobody", turn_id="none"))
    second = d.admitted()
    assert (len(first), second) == (2, [])


def test_into_an_empty_engine_one_is_let_in_however_large_it_is() -> None:
    d = Driver(PRESETS["mars"])
    d.pool(total=1000)
    d.ask("large", tokens=5000)
    d.ask("larger", tokens=6000)
    assert d.admitted() == ["large"]
    assert d.admitted() == []


@pytest.mark.parametrize(
    ("event", "urgent"),
    [
        (ev.TurnEnded(program_id="a", turn_id="t", ok=False), True),
        (ev.TurnQueued(program_id="a", turn_id="q"), True),
        (ev.ToolStarted(program_id="a", call_id="c", tool="bash"), True),
        (ev.ProgramEnded(program_id="a"), True),
        (ev.PublisherState(), True),
        (ev.PoolSampled(total_blocks=5, free_blocks=5), False),
        (ev.HostSampled(cpus=2), False),
        (ev.FirstToken(program_id="a", turn_id="t"), False),
        (ev.ToolEnded(program_id="a", call_id="c", tool="bash", duration_ns=1), False),
    ],
)
def test_boundaries_are_decided_at_once(event: ev.Event, urgent: bool) -> None:
    d = Driver()
    d.submit("a", "t")
    d.tick()
    d.send(event)
    assert (d.controller.next_deadline_ns() == 0) is urgent


def test_a_duplicate_is_no_reason_to_tick() -> None:
    d = Driver()
    event = d.gate(ev.TurnQueued, program_id="a", turn_id="t")
    d.send(event)
    d.tick()
    d.send(event)
    assert d.controller.next_deadline_ns() > d.now_ns


def test_who_is_overdue_goes_first() -> None:
    d = Driver(replace(fixed(1), packing=PressureAware(aged=False)))
    d.submit("holder", "t")
    d.ask("long", tokens=900)
    d.wait(1)
    d.ask("longer", tokens=990)
    d.wait(299)
    d.ask("short", tokens=1)
    d.end("holder")
    assert d.admitted() == ["long"]
    d.end("long")
    assert d.admitted() == ["short"]
    d.end("short")
    assert d.admitted() == ["longer"]


# Slots that are taken back


def test_who_lacks_room_gets_it_at_once_from_one_that_rests_and_whose_context_is_cheap() -> None:
    """Nothing is known yet of what computing a context again costs, so that keeping it is worth nothing."""
    d = Driver(PRESETS["mars"])
    d.pool(total=1000)
    d.tick()
    d.run_turn("a", prompt=600)
    d.submit("busy", blocks=10)
    d.ask("b", tokens=500)
    assert d.admitted(after_s=0.1) == ["b"], "no interval has ended"
    assert [(c.program_id, c.reason[:21]) for c in of(cmd.Pause, d.tick())] == [("a", "the pool is overfull:")]


# The safety valve


def stalled(packing: PackingPolicy | None = None) -> Driver:
    """One slot, held by a program whose tool runs, and three that wait."""
    d = Driver(replace(fixed(1), packing=packing) if packing else fixed(1))
    d.run_turn("holder")
    d.start_tool("holder")
    for name in "abc":
        d.ask(name)
    return d


def test_the_valve_stays_shut_while_a_turn_runs() -> None:
    d = stalled()
    d.submit("holder", "holder.2")
    assert d.admitted(after_s=100) == []
    d.finish("holder", "holder.2")
    assert d.admitted(after_s=0.9) == []
    assert d.admitted(after_s=0.1) == ["a"]


def test_nobody_goes_beyond_a_strict_limit_however_long_the_engine_is_idle() -> None:
    d = Driver(replace(fixed(1), admission=Aimd(window_initial=1, window_max=1, strict=True)))
    d.run_turn("holder")
    d.start_tool("holder")
    d.ask("a")
    assert d.admitted(after_s=100) == []
    d.end("holder")
    assert d.admitted() == ["a"]


class LastFirstDouble(LeastLeft):
    """An order by what is left, in which who came last has least."""

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        return queue[::-1]


@pytest.mark.parametrize(("crowded", "first"), [(False, "a"), (True, "c")])
def test_where_cpus_are_crowded_the_valve_goes_by_what_is_left(crowded: bool, first: str) -> None:
    """The engine idles often there, and the valve lets most of them in."""
    d = stalled(LastFirstDouble())
    d.tick()
    d.controller.state.overload = replace(d.controller.state.overload, cpu=crowded)
    d.controller.state.interval_ends_ns += seconds(100)
    assert d.admitted(after_s=2) == [first]


# Families


def test_children_end_with_their_root_even_after_they_came_back() -> None:
    d = Driver()
    d.run_turn("root")
    d.ask("child", parent="root")
    d.tick()
    d.end("root")
    assert d.program("child").status is Status.ENDED
    d.ask("child", "child.2", parent="root")
    d.end("root")
    assert (d.program("child").status, d.ledger.gates.held) == (Status.ENDED, {})
    d.tick(61)
    d.send(d.gate(ev.TurnAbandoned, program_id="child", turn_id="child.2"))
    assert d.ledger.programs.by_name == {}


def test_children_lose_their_slot_with_their_root() -> None:
    d = Driver()
    d.run_turn("root", prompt=100)
    d.ask("child", parent="root")
    d.tick()
    d.run_turn("child", prompt=40)
    d.ledger.programs.move(d.program("root"), Trigger.PAUSE, d.now_ns)
    assert (d.program("child").status, d.ledger.programs.charges.demand_blocks) == (Status.PAUSED, 0)
    d.submit("child", "child.2")
    assert (d.program("root").status, d.program("child").status) == (Status.ACTIVE, Status.ACTIVE)


# Contradictions and gaps


def test_a_contradiction_quarantines_until_its_publisher_tells_its_state() -> None:
    d = Driver(PRESETS["mars"])
    d.ledger.estimates.eviction_delay.add(seconds(3))
    d.run_turn("a", tool="bash", calls=1)
    d.finish("a", "never began")
    assert d.program("a").quarantined
    commands = d.tick()
    assert [c.publisher for c in of(cmd.StateRequest, commands)] == ["node/engine/1"]
    assert of(cmd.Retain, commands) == []
    d.send(d.gate(ev.PublisherState, role="gate"))
    assert d.program("a").quarantined
    d.send(d.engine(ev.PublisherState, role="engine"))
    assert not d.program("a").quarantined


def test_a_quarantine_ends_with_the_publisher_that_caused_it() -> None:
    d = Driver()
    d.run_turn("a")
    d.finish("a", "never began")
    d.now_ns += seconds(6)
    d.engine = Publisher("node/engine/2")
    d.pool()
    assert not d.program("a").quarantined


def requests(d: Driver, after_s: float = 0.0) -> list[str]:
    return [c.publisher for c in of(cmd.StateRequest, d.tick(after_s))]


def test_an_unnumbered_contradiction_asks_nobody() -> None:
    d = Driver()
    d.submit("a", "t")
    d.send(ev.TurnEnded(program_id="b", turn_id="t"))
    assert (d.counts.contradictions, requests(d)) == (1, [])


# Other commands


def test_recalled_grants_and_pauses_hold() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.controller.replay_command(cmd.Admit(command_id=7, program_id="a"), d.now_ns)
    assert (d.program("a").status, d.ledger.gates.held) == (Status.ACTIVE, {})
    d.controller.replay_command(cmd.Pause(command_id=9, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.PAUSED
    d.controller.replay_command(cmd.Pause(command_id=10, program_id="a"), d.now_ns)
    d.controller.replay_command(cmd.Admit(command_id=11, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.ACTIVE
    d.end("a")
    d.controller.replay_command(cmd.Admit(command_id=12, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.ENDED


def test_a_command_that_the_snapshot_holds_is_not_recalled() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.controller.numbering.sent = 7
    d.controller.replay_command(cmd.Admit(command_id=7, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.WAITING
    d.controller.replay_command(cmd.Admit(command_id=9, program_id="unknown"), d.now_ns)
    d.controller.replay_command(cmd.StateRequest(command_id=10), d.now_ns)
    assert d.controller.numbering.sent == 10


def test_a_recalled_window_is_not_announced_again() -> None:
    d = Driver(PRESETS["mars"])
    d.controller.replay_command(cmd.SetWindow(command_id=1, limit=8, window=8.0), d.now_ns)
    assert of(cmd.SetWindow, d.tick()) == []


@pytest.mark.parametrize("preset", ["mars", "penstock", "concur"])
def test_it_goes_on_from_a_recalled_window(preset: str) -> None:
    d = Driver(PRESETS[preset])
    d.controller.replay_command(cmd.SetWindow(command_id=1, limit=16, window=16.5), d.now_ns)
    assert (d.controller.window.limit, d.controller.window.window) == (16, 16.5)
    d.tick()
    assert (d.controller.window.limit, d.controller.window.window) == (16, 16.5)


def test_pressure_is_what_the_ledger_and_the_samples_say() -> None:
    d = Driver(fixed(1))
    assert (d.controller.pressure.kv_total_blocks, d.controller.pressure.cpus) == (0, 0.0)
    d.pool(total=200, free=20)
    d.cpus(4)
    d.submit("a", blocks=90)
    d.start_tool("a", "one")
    d.start_tool("b", "two")
    d.ask("c", tokens=30)
    d.ask("e", tokens=50)
    d.tick()
    seen = d.controller.pressure
    assert (seen.kv_total_blocks, seen.kv_free_blocks, seen.kv_demand_blocks, seen.kv_use_ratio) == (
        200,
        20,
        90,
        0.45,
    )
    assert (seen.tools_active, seen.tools_waiting, seen.tools_per_program, seen.cpus) == (2, 0, 2.0, 4)
    assert (seen.programs_active, seen.queue_length, seen.queued_blocks_mean) == (1, 2, 40.0)
    assert seen.kv_has_slack


def test_a_root_is_remembered_as_long_as_its_children() -> None:
    d = Driver()
    d.ask("child", parent="root")
    d.tick()
    d.run_turn("child")
    d.end("root")
    d.start_tool("child")
    d.tick(61)
    d.send(d.gate(ev.ProgramArrived, program_id="root", parent_id="someone"))
    assert (d.program("root").parent_id, d.program("child").root_id) == ("someone", "someone"), "told late"
    d.end_tool("child")
    d.tick(1000)
    d.tick(1000)
    d.tick(3600)
    assert d.ledger.programs.by_name.keys() <= {"someone"}
