"""BalanceAndAdmit and what surrounds it: order, slots, backfill, overdue, the safety valve, families, recall."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.control import ControlRules
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError, RemoteEventError
from controlplane.core.facts import Facts
from controlplane.core.ledger import Ledger
from controlplane.core.lifecycle import Trigger
from controlplane.core.packing.least_left import LeastLeft
from controlplane.core.packing.pressure_aware import PressureAware
from controlplane.core.policies import PackingPolicy, Window
from controlplane.core.presets import PRESETS
from controlplane.core.slots import gathering
from controlplane.core.steps import run
from controlplane.core.types import Pressure, QueuedProgram, Status, seconds

# Admission


def test_slots_are_filled_in_the_packing_order_and_no_further() -> None:
    d = Driver(fixed(2))
    for name in "cab":
        d.ask(name)
        d.wait(0.001)
    assert d.admitted() == ["c", "a"]
    assert list(d.ledger.programs.queue) == ["b"]


def test_no_limit_admits_everyone() -> None:
    d = Driver(fixed(0))
    for number in range(50):
        d.ask(f"p{number}")
    assert len(d.admitted()) == 50


def test_mars_packs_short_sessions_first() -> None:
    d = Driver(PRESETS["mars"])
    d.pool()
    for name, tokens in (("a", 50), ("b", 5), ("c", 20)):
        d.ask(name, tokens=tokens)
    assert d.admitted() == ["b", "c", "a"]


def test_the_window_is_updated_before_slots_are_counted() -> None:
    """Algorithm 1: PackQueue, UpdateWindow, slots = limit - active, PopFront(slots)."""
    d = Driver(PRESETS["mars"])
    for number in range(20):
        d.ask(f"p{number:02}")
    assert d.admitted() == [f"p{number:02}" for number in range(8)]
    for number in range(8):
        d.submit(f"p{number:02}")
    assert d.admitted(after_s=1) == ["p08"]  # slack and used: +1
    assert of(cmd.Admit, d.tick(0.5)) == []


def test_a_shrunk_window_takes_no_slot_back_by_itself() -> None:
    d = Driver(PRESETS["mars"])
    d.pool(total=100)
    for number in range(8):
        d.submit(f"p{number}", blocks=20)
    d.ask("waits")
    assert d.admitted(after_s=1) == []
    assert d.admitted(after_s=1) == []
    assert d.controller.window.limit < 8
    assert d.ledger.programs.charges.active_roots == 8


def test_a_grant_names_its_slot_and_its_lease() -> None:
    d = Driver(fixed(2), ControlRules(grant_s=30))
    d.ask("a")
    (grant,) = of(cmd.Admit, d.tick())
    assert (grant.ttl_ns, grant.reason) == (seconds(30), "slot 1 of 2; 10 blocks")


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


def test_while_nobody_fits_they_are_not_ordered_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[int] = []

    def order(packing: LeastLeft, queue: Sequence[QueuedProgram], *_: object) -> Sequence[QueuedProgram]:
        ordered.append(len(queue))
        return queue

    monkeypatch.setattr(LeastLeft, "order", order)
    d = Driver(PRESETS["penstock"])
    d.pool(total=1000)
    d.ask("here", tokens=900)
    assert d.admitted() == ["here"]
    d.submit("here", blocks=900)
    for name in ("large", "larger"):
        d.ask(name, tokens=500)
    assert d.admitted() == []
    assert ordered == [1]
    d.ask("small", tokens=50)
    assert d.admitted() == ["small"]
    assert ordered == [1, 3]


def test_backfill_as_soon_as_a_program_ends() -> None:
    d = Driver(fixed(1))
    d.run_turn("a")
    d.ask("b")
    assert d.admitted() == []
    assert d.controller.next_deadline_ns() > d.now_ns
    d.end("a")
    assert d.controller.next_deadline_ns() == 0
    assert d.admitted() == ["b"]


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


def test_a_tick_within_the_interval_does_not_sense() -> None:
    d = Driver(PRESETS["mars"])
    d.tick()
    deadline_ns = d.controller.next_deadline_ns()
    assert deadline_ns == d.now_ns + seconds(1)
    d.pool(total=10)
    d.submit("a", blocks=10)
    d.tick(0.5)
    assert (d.controller.state.overload.kv, d.controller.next_deadline_ns()) == (False, deadline_ns)
    d.tick(0.5)
    assert d.controller.state.overload.kv


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


def test_among_the_overdue_the_longest_wait_goes_first() -> None:
    d = Driver(replace(fixed(1), packing=PRESETS["mars"].packing))
    d.submit("holder", "t")
    for name, tokens in (("a", 900), ("b", 500), ("c", 100)):
        d.ask(name, tokens=tokens)
        d.wait(1)
    d.wait(300)
    order = []
    for previous in ("holder", "a", "b"):
        d.end(previous)
        order += d.admitted()
    assert order == ["a", "b", "c"]


def test_where_the_order_ages_by_itself_a_long_wait_does_not_change_it() -> None:
    """Else in a queue longer than that wait the order would be that of arrival."""
    d = Driver(replace(fixed(1), packing=LeastLeft()))
    d.submit("holder", "t")
    for name, tokens in (("a", 900), ("b", 500), ("c", 100)):
        d.ask(name, tokens=tokens)
        d.wait(1)
    d.wait(300)
    order = []
    for previous in ("holder", "c", "b"):
        d.end(previous)
        order += d.admitted()
    assert order == ["c", "b", "a"]


def test_in_such_an_order_too_room_is_kept_for_the_first_once_it_has_waited_for_long() -> None:
    """It comes first by its wait. While it does not fit, small ones would take what comes free for ever."""

    def admitted(waited_s: int) -> list[str]:
        d = Driver(PRESETS["penstock"])
        d.pool(total=100_000)
        d.tick()
        d.run_turn("holder", prompt=50_000)
        d.submit("holder", "t", blocks=60_000)
        d.ask("large", tokens=90_000)
        d.wait(waited_s)
        d.ask("small", tokens=10)
        return d.admitted()

    assert admitted(100) == ["small"]
    assert admitted(301) == []


# Slots that are taken back


def test_who_lacks_room_gets_it_from_one_that_rests_once_that_is_weighed() -> None:
    """A tool that has just begun is waited for. Nothing is known yet of what computing a context again costs, so
    that keeping it is worth nothing afterwards."""
    d = Driver(PRESETS["mars"])
    d.pool(total=1000)
    d.tick()
    d.run_turn("a", prompt=600)
    d.submit("busy", blocks=10)
    d.ask("b", tokens=500)
    commands = d.tick(0.1)
    assert of(cmd.Admit, commands) + of(cmd.Pause, commands) == []
    assert d.admitted(after_s=1) == ["b"]
    assert [(c.program_id, c.reason[:21]) for c in of(cmd.Pause, d.tick())] == [("a", "the pool is overfull:")]


def test_who_lends_its_room_loses_its_slot_once_others_need_it() -> None:
    d = Driver(PRESETS["mars"])
    d.pool(total=1000)
    d.run_turn("a", prompt=600)
    assert of(cmd.Pause, d.tick(1)) == []
    assert (d.program("a").lends, d.program("a").status) == (True, Status.ACTIVE)
    d.ask("b", tokens=500)
    commands = d.tick(0.1)
    assert [c.program_id for c in of(cmd.Admit, commands)] == ["b"], "beside what a lends"
    assert [c.program_id for c in of(cmd.Pause, commands + d.tick(0.1))] == ["a"], "both do not fit"
    assert d.program("a").status is Status.PAUSED


def test_who_comes_back_goes_before_newcomers() -> None:
    d = Driver(PRESETS["mars"])
    d.pool(total=10_000)
    d.run_turn("back", prompt=900)
    d.ledger.programs.move(d.program("back"), Trigger.PAUSE, d.now_ns)
    d.ask("new", tokens=5)
    d.ask("back", "back.2", tokens=1000)
    assert d.admitted() == ["back", "new"]


# The safety valve


def stalled(packing: PackingPolicy | None = None) -> Driver:
    """One slot, held by a program whose tool runs, and three that wait."""
    d = Driver(replace(fixed(1), packing=packing) if packing else fixed(1))
    d.run_turn("holder")
    d.start_tool("holder")
    for name in "abc":
        d.ask(name)
    return d


def test_the_head_is_let_in_when_the_engine_idles() -> None:
    d = stalled()
    assert d.admitted(after_s=0.9) == []
    commands = of(cmd.Admit, d.tick(0.1))
    assert [c.program_id for c in commands] == ["a"]
    assert "idle" in commands[0].reason


def test_the_valve_opens_for_one_at_a_time() -> None:
    d = stalled()
    assert d.admitted(after_s=1) == ["a"]
    assert d.admitted() == []
    assert d.admitted(after_s=0.5) == []
    assert d.admitted(after_s=0.5) == ["b"]


def test_the_valve_stays_shut_while_a_turn_runs() -> None:
    d = stalled()
    d.submit("holder", "holder.2")
    assert d.admitted(after_s=100) == []
    d.finish("holder", "holder.2")
    assert d.admitted(after_s=0.9) == []
    assert d.admitted(after_s=0.1) == ["a"]


def test_the_valve_opens_later_while_crowded_cpus_hold_up_who_is_in() -> None:
    d = stalled()
    d.tick()
    d.controller.state.overload = replace(d.controller.state.overload, cpu=True)
    d.controller.state.interval_ends_ns += seconds(100)  # the load is not judged anew meanwhile
    idle_ns = d.controller.ledger.turns.engine_idle_since_ns
    d.wait((idle_ns + seconds(1.9) - d.now_ns) / 1e9)
    assert d.admitted() == []
    assert d.admitted(after_s=0.1) == ["a"]


class LastFirstDouble(LeastLeft):
    """An order by what is left, in which who came last has least."""

    def order(
        self, queue: Sequence[QueuedProgram], facts: Facts, pressure: Pressure, now_ns: int
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


def test_a_newcomer_to_an_idle_engine_waits_its_own_time() -> None:
    d = Driver(fixed(1))
    d.run_turn("holder")
    d.start_tool("holder")
    d.wait(100)
    d.ask("a")
    assert d.admitted(after_s=0.5) == []
    assert d.admitted(after_s=0.5) == ["a"]


# Families


def test_a_child_rides_its_roots_slot() -> None:
    d = Driver(fixed(1))
    d.submit("root", blocks=100)
    d.ask("child", parent="root")
    (grant,) = [c for c in of(cmd.Admit, d.tick()) if c.program_id == "child"]
    assert grant.reason.startswith("child of root")
    d.submit("child", blocks=50)
    assert (d.ledger.programs.charges.active_roots, d.ledger.programs.charges.demand_blocks) == (1, 150)


def test_a_child_waits_in_its_roots_place() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("root", tokens=30)
    d.ask("child", parent="root", tokens=12)
    assert d.admitted() == []
    assert [(q.program_id, q.blocks) for q in run(gathering(d.ledger))] == [("root", 42)]
    d.end("holder")
    assert d.admitted() == ["root", "child"]
    assert d.ledger.programs.charges.active_roots == 1


def test_a_childs_turn_alone_brings_its_root_into_the_queue() -> None:
    d = Driver(fixed(1))
    d.ask("child", parent="root")
    assert list(d.ledger.programs.queue) == ["root"]
    assert d.admitted() == ["root", "child"]


def test_grandchildren_belong_to_the_root() -> None:
    d = Driver(fixed(1))
    d.ask("child", parent="root")
    d.ask("grandchild", parent="child")
    assert d.program("grandchild").root_id == "root"
    assert d.admitted() == ["root", "child", "grandchild"]


def test_a_program_is_not_its_own_parent() -> None:
    d = Driver(fixed(1))
    d.ask("a", parent="a")
    assert (d.program("a").parent_id, d.admitted()) == ("", ["a"])


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


def test_children_that_are_not_active_stay_as_they_are_when_the_root_is_paused() -> None:
    d = Driver()
    d.run_turn("root")
    d.send(d.gate(ev.ProgramArrived, program_id="child", parent_id="root"))
    d.ledger.programs.move(d.program("root"), Trigger.PAUSE, d.now_ns)
    assert (d.program("root").status, d.program("child").status) == (Status.PAUSED, Status.WAITING)


def test_a_contradicting_sample_leaves_the_tick_its_time() -> None:
    d = Driver()
    d.tick()
    d.end_tool("a")
    assert d.counts.contradictions == 1
    assert d.controller.next_deadline_ns() > d.now_ns


def test_one_of_two_children_may_be_forgotten() -> None:
    d = Driver()
    d.submit("root")
    for name in ("one", "two"):
        d.ask(name, parent="root")
    d.tick()
    d.end("one")
    d.tick(61)
    assert set(d.ledger.programs.by_name) == {"root", "two"}
    assert list(d.ledger.programs.children_of("root")) == ["two"]


def test_held_turns_of_a_root_that_entered_unasked_are_let_go() -> None:
    d = Driver(fixed(2))
    d.submit("holder")
    d.submit("other")
    d.ask("child", parent="root")
    assert d.admitted() == []
    d.end("other")
    d.submit("root")
    assert "child" in d.admitted()


# A gate that asks again


def test_an_active_program_that_asks_is_told_again() -> None:
    d = Driver(fixed(1))
    d.run_turn("a")
    d.ask("a", "a.2")
    commands = of(cmd.Admit, d.tick())
    assert [(c.program_id, c.reason) for c in commands] == [("a", "its slot is held already")]
    assert d.program("a").queued_turns == 0


def test_a_program_that_asks_just_before_it_would_be_paused_is_not() -> None:
    d = Driver(fixed(1))
    d.tick()
    d.run_turn("a", calls=0)
    d.wait(30)
    d.ask("a", "a.2")
    commands = d.tick()
    assert of(cmd.Pause, commands) == []
    assert [c.program_id for c in of(cmd.Admit, commands)] == ["a"]


def test_a_turn_that_went_in_meanwhile_needs_no_grant() -> None:
    d = Driver(fixed(1))
    d.run_turn("a")
    d.ask("a", "a.2")
    d.submit("a", "a.2")
    assert d.admitted() == []


def test_an_ended_program_that_had_asked_is_not_granted() -> None:
    d = Driver(fixed(1))
    d.run_turn("a")
    d.ask("a", "a.2")
    d.end("a")
    assert d.admitted() == []


# What is said


def test_the_window_is_announced_when_it_changes() -> None:
    d = Driver(PRESETS["mars"])
    (first,) = of(cmd.SetWindow, d.tick())
    assert (first.limit, first.window) == (8, 8.0)
    assert of(cmd.SetWindow, d.tick(1)) == []
    for number in range(8):
        d.submit(f"p{number}")
    (second,) = of(cmd.SetWindow, d.tick(1))
    assert (second.limit, second.window, second.reason) == (9, 9.0, "slack: +1")


def test_commands_are_numbered_from_one_and_say_why() -> None:
    d = Driver(fixed(2))
    d.ask("a")
    d.ask("b")
    commands = d.tick() + d.tick(1)
    assert [c.command_id for c in commands] == list(range(1, len(commands) + 1))
    assert all(c.reason for c in commands)


def test_retention_is_decided_when_a_turn_ends_and_again_when_its_tool_is_known() -> None:
    """The second pin says more of the same gap, and runs from its beginning as the first did."""
    d = Driver(PRESETS["mars"])
    d.ledger.estimates.eviction_delay.add(seconds(3))
    d.pool()
    d.submit("a")
    d.finish("a", prompt=100)
    (pin,) = of(cmd.Retain, d.tick())
    until_ns = d.now_ns + pin.ttl_ns
    assert (pin.program_id, d.program("a").retained_until_ns) == ("a", until_ns)
    d.start_tool("a")
    (again,) = of(cmd.Retain, d.tick(0.2))
    assert (again.ttl_ns, d.program("a").retained_until_ns) == (pin.ttl_ns - seconds(0.2), until_ns)
    assert of(cmd.Retain, d.tick()) == []
    d.submit("a", "a.2")
    assert d.program("a").retained_until_ns == 0


def test_of_very_many_that_begin_to_act_at_once_the_rest_is_decided_in_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.core.controller._MOST_WEIGHED", 2)
    d = Driver(PRESETS["mars"])
    d.ledger.estimates.eviction_delay.add(seconds(3))
    d.pool()
    for name in ("a", "b", "c"):
        d.submit(name)
        d.finish(name, prompt=100)
    assert [pin.program_id for pin in of(cmd.Retain, d.tick())] == ["a", "b"]
    assert d.controller.next_deadline_ns() == 0
    assert [pin.program_id for pin in of(cmd.Retain, d.tick(0))] == ["c"]
    assert d.controller.next_deadline_ns() > 0


def test_among_very_many_the_forecast_is_anew_once_as_many_came_as_one_of_its_sample_stands_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.core.outlook._MOST_FORECAST", 2)
    made: list[int] = []

    def growing(ledger: Ledger, *, returning: bool) -> list[tuple[float, float, float]]:
        made.append(len(ledger.programs.active))
        return []

    monkeypatch.setattr("controlplane.core.controller.growing", growing)
    d = Driver()
    d.pool()
    for number in range(12):
        d.ask(f"p{number}")
        d.tick()
    assert made == [0, 1, 2, 3, 5, 9]  # of 4 and 5 each stands for 2, of 8 and 9 for 4


def test_a_tool_that_is_told_before_its_turns_end_is_decided_when_that_comes() -> None:
    """The agent has the reply, and its tool runs, before the engine's batch of events is sent."""
    d = Driver(PRESETS["mars"])
    d.ledger.estimates.eviction_delay.add(seconds(3))
    d.pool()
    d.submit("a")
    d.start_tool("a")
    assert of(cmd.Retain, d.tick()) == []
    d.finish("a", prompt=100)
    (pin,) = of(cmd.Retain, d.tick())
    assert pin.program_id == "a"


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


def test_a_contradiction_about_no_program_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RemoteEventError("fewer CPUs than none")

    d = Driver()
    monkeypatch.setitem(d.ledger.handlers, ev.HostSampled, refuse)
    d.cpus(-1)
    assert d.counts.contradictions == 1
    assert requests(d) == ["node/host/1"]


def requests(d: Driver, after_s: float = 0.0) -> list[str]:
    return [c.publisher for c in of(cmd.StateRequest, d.tick(after_s))]


def test_a_lost_state_request_is_asked_again() -> None:
    d = Driver()
    d.engine.skip()
    d.pool()
    assert requests(d) == ["node/engine/1"]
    assert requests(d, 5) == []
    assert requests(d, 5) == ["node/engine/1"]
    d.send(d.engine(ev.PublisherState, role="engine"))
    assert requests(d, 100) == []


def test_a_publisher_that_has_no_state_is_not_asked_for_ever() -> None:
    d = Driver()
    d.host.skip()
    d.cpus(4)
    asked = sum(len(requests(d, 10)) for _ in range(20))
    assert asked == 3
    d.host.skip()
    d.cpus(4)
    assert requests(d, 1) == ["node/host/1"]


def test_gaps_in_quick_succession_are_one_request() -> None:
    d = Driver()
    asked = 0
    for _ in range(10):
        d.engine.skip()
        d.pool()
        asked += len(requests(d, 0.1))
    assert asked == 1
    assert requests(d, 1) == ["node/engine/1"]


def test_a_publisher_that_was_replaced_is_not_asked() -> None:
    d = Driver()
    d.engine.skip()
    d.pool()
    d.now_ns += seconds(6)
    d.engine = Publisher("node/engine/2")
    d.pool()
    assert requests(d) == []


def test_an_unnumbered_contradiction_asks_nobody() -> None:
    d = Driver()
    d.submit("a", "t")
    d.send(ev.TurnEnded(program_id="b", turn_id="t"))
    assert (d.counts.contradictions, requests(d)) == (1, [])


# Other commands


@pytest.mark.parametrize(
    ("command", "retained"),
    [
        (cmd.Release(program_id="a"), False),
        (cmd.Demote(program_id="a"), False),
        (cmd.Discard(program_id="a"), False),
        (cmd.Prefetch(program_id="a"), True),
        (cmd.Label(program_id="a", label="busy"), True),
    ],
)
def test_what_a_recalled_command_means_for_a_pin(command: cmd.Command, retained: bool) -> None:
    d = Driver()
    d.run_turn("a")
    d.controller.recall(replace(cmd.Retain(program_id="a", ttl_ns=50), command_id=1), d.now_ns)
    assert d.program("a").retained_until_ns == d.now_ns + 50
    d.controller.recall(replace(command, command_id=2), d.now_ns)
    assert bool(d.program("a").retained_until_ns) is retained


def test_recalled_grants_and_pauses_hold() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.controller.recall(cmd.Admit(command_id=7, program_id="a"), d.now_ns)
    assert (d.program("a").status, d.ledger.gates.held) == (Status.ACTIVE, {})
    d.controller.recall(cmd.Pause(command_id=9, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.PAUSED
    d.controller.recall(cmd.Pause(command_id=10, program_id="a"), d.now_ns)
    d.controller.recall(cmd.Admit(command_id=11, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.ACTIVE
    d.end("a")
    d.controller.recall(cmd.Admit(command_id=12, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.ENDED


def test_a_command_that_the_snapshot_holds_is_not_recalled() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.controller.numbering.sent = 7
    d.controller.recall(cmd.Admit(command_id=7, program_id="a"), d.now_ns)
    assert d.program("a").status is Status.WAITING
    d.controller.recall(cmd.Admit(command_id=9, program_id="unknown"), d.now_ns)
    d.controller.recall(cmd.StateRequest(command_id=10), d.now_ns)
    assert d.controller.numbering.sent == 10


def test_a_recalled_window_is_not_announced_again() -> None:
    d = Driver(PRESETS["mars"])
    d.controller.recall(cmd.SetWindow(command_id=1, limit=8, window=8.0), d.now_ns)
    assert of(cmd.SetWindow, d.tick()) == []


@pytest.mark.parametrize("preset", ["mars", "penstock", "concur"])
def test_it_goes_on_from_a_recalled_window(preset: str) -> None:
    d = Driver(PRESETS[preset])
    d.controller.recall(cmd.SetWindow(command_id=1, limit=16, window=16.5), d.now_ns)
    assert (d.controller.window.limit, d.controller.window.window) == (16, 16.5)
    d.tick()
    assert (d.controller.window.limit, d.controller.window.window) == (16, 16.5)


def test_a_recalled_cut_ends_the_slow_start() -> None:
    d = Driver(PRESETS["penstock"])
    d.controller.recall(cmd.SetWindow(command_id=1, limit=5, window=5.6), d.now_ns)
    assert d.controller.state.admission.was_cut
    d.controller.recall(cmd.SetWindow(command_id=2, limit=6, window=6.6), d.now_ns)
    assert d.controller.state.admission.was_cut


def test_a_paused_program_whose_turn_is_held_queues() -> None:
    d = Driver(fixed(1))
    d.run_turn("a")
    d.ask("a", "a.2")
    d.controller.recall(cmd.Pause(command_id=1, program_id="a"), d.now_ns)
    assert (d.program("a").status, list(d.ledger.programs.queue)) == (Status.WAITING, ["a"])
    assert d.program("a").queued_at_ns == d.now_ns
    assert d.admitted() == ["a"]


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


def test_no_slack_from_ninety_percent() -> None:
    d = Driver()
    d.pool(total=100)
    d.submit("a", blocks=90)
    d.tick()
    assert not d.controller.pressure.kv_has_slack


def test_where_contexts_are_cheap_to_compute_again_an_overfull_pool_is_no_overload() -> None:
    for tolerated, overloaded in ((0.0, True), (0.5, False)):
        d = Driver()
        d.controller.state.window = Window(limit=0, window=0.0, reason="by hand", excess_now_ratio=tolerated)
        d.pool(total=100)
        d.submit("a", blocks=120)
        d.tick()
        assert (d.controller.pressure.kv_use_ratio, d.controller.pressure.kv_overloaded) == (1.2, overloaded)
        assert d.controller.pressure.kv_has_slack is (not overloaded)


@pytest.mark.parametrize(
    ("field", "value"),
    [("interval_s", 0), ("overdue_s", -1), ("stall_s", -1), ("resync_s", 0), ("grant_s", 0.5)],
)
def test_rules_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as error:
        ControlRules(**{field: value})
    assert error.value.field == field


def test_two_controllers_decide_alike() -> None:
    def run() -> list[cmd.Command]:
        d = Driver(PRESETS["mars"])
        d.pool(total=200)
        commands: list[cmd.Command] = []
        for number in range(30):
            d.ask(f"p{number}", tokens=number * 7 % 40)
            commands += d.tick(0.3)
            d.submit(f"p{number}")
        return commands

    assert run() == run()


def test_a_controller_made_of_a_state_goes_on_from_it() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("a")
    d.tick()
    again = Controller(fixed(1), state=d.controller.state)
    again.receive(d.tools(ev.ProgramEnded, program_id="holder"), d.now_ns)
    assert [c.program_id for c in of(cmd.Admit, again.tick(d.now_ns))] == ["a"]


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
    assert d.ledger.programs.by_name.keys() <= {"someone"}


def test_a_child_that_ends_leaves_its_siblings_turns() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    for name in ("one", "two"):
        d.ask(name, parent="root")
    d.end("one")
    assert d.program("root").queued_turns == 1
    d.end("holder")
    assert d.admitted() == ["root", "two"]
