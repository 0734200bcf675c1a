"""Programs that an open gate let in: too many of them give their slots back, at a turn's end."""

from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver, Publisher, fixed, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.types import Status


def overfull(window: int = 2, unasked: int = 3) -> Driver:
    """The window is full of ``granted-*``; ``open-*`` came in through an open gate, in that order, and run."""
    d = Driver(fixed(window))
    for number in range(window):
        d.ask(f"granted-{number}")
        d.wait(1)
    d.tick()
    for number in range(window):
        d.submit(f"granted-{number}")
    for number in range(unasked):
        d.submit(f"open-{number}")
        d.wait(1)
    return d


def paused(d: Driver, after_s: float = 0.0) -> list[str]:
    """The programs that one tick takes the slot from, in order."""
    return [command.program_id for command in of(cmd.Pause, d.tick(after_s))]


def test_who_came_in_unasked_leaves_at_the_end_of_its_turn() -> None:
    d = overfull()
    d.ask("new")
    assert d.tick() == []
    assert d.ledger.programs.charges.active_roots == 5, "a running turn is never revoked"
    d.finish("open-1")
    (pause,) = d.tick()
    assert (type(pause), pause.program_id) == (cmd.Pause, "open-1")
    assert pause.reason == "an open gate let it in above the window"
    assert d.program("open-1").status is Status.PAUSED
    d.finish("open-0")
    d.finish("open-2")
    assert paused(d) == ["open-2", "open-0"]
    assert d.ledger.programs.charges.active_roots == 2
    assert d.counts.taken_back == 3


def test_very_many_leave_in_several_ticks_that_follow_at_once() -> None:
    d = overfull(unasked=600)
    for number in range(600):
        d.finish(f"open-{number}")
    d.ask("new")
    assert len(paused(d)) == 256
    assert d.controller.next_deadline_ns() == 0
    assert d.program("new").status is Status.WAITING
    assert [len(paused(d)), len(paused(d)), len(paused(d))] == [256, 88, 0]
    assert d.counts.taken_back == 600


def test_a_granted_slot_is_never_taken_back() -> None:
    d = overfull()
    d.ask("new")
    for name in ("granted-0", "granted-1"):
        d.finish(name)
    assert paused(d) == []


def test_the_last_arrived_leave_first_and_who_fits_then_keeps_its_slot() -> None:
    d = overfull()
    d.ask("new")
    d.end("granted-1")
    d.finish("open-0")
    assert "open-0" not in paused(d), "it arrived first of the three, and two of them are too many"
    d.finish("open-1")
    d.finish("open-2")
    assert paused(d) == ["open-2", "open-1"]
    d.ask("open-0", "open-0.2")
    assert d.admitted() == ["open-0"], "it is one of those that the window allows"
    assert d.ledger.programs.unasked == {}


def test_its_next_turn_queues_with_its_first_arrival_and_is_admitted_in_the_packing_order() -> None:
    d = overfull(window=1, unasked=2)
    d.ask("new")
    for name in ("open-0", "open-1"):
        d.finish(name)
    assert set(paused(d)) == {"open-0", "open-1"}
    d.ask("open-1", "open-1.2")
    d.ask("open-0", "open-0.2")
    assert d.admitted() == []
    d.end("granted-0")
    assert d.admitted() == ["open-0"], "it arrived before open-1 and before new"
    d.end("open-0")
    assert d.admitted() == ["open-1"]


def test_a_turn_that_waits_already_is_queued_and_not_let_go_on_the_old_slot() -> None:
    """The gate's own grants end when the daemon is back: it holds a turn of whom the daemon believes active."""
    d = overfull(window=1, unasked=1)
    d.finish("open-0")
    d.ask("open-0", "open-0.2")
    (pause,) = d.tick()
    assert (type(pause), pause.program_id) == (cmd.Pause, "open-0")
    assert d.program("open-0").status is Status.WAITING
    assert list(d.ledger.programs.queue) == ["open-0"]
    d.end("granted-0")
    assert d.admitted() == ["open-0"]


def test_a_parallel_turn_waits_until_the_running_one_has_ended() -> None:
    d = overfull(window=1, unasked=1)
    d.ask("open-0", "open-0.2")
    assert d.tick() == []
    assert d.tick(after_s=2) == [], "still held, and not forgotten"
    d.finish("open-0")
    assert paused(d) == ["open-0"]
    assert list(d.ledger.programs.queue) == ["open-0"]


def test_a_child_that_runs_keeps_its_root_in() -> None:
    d = overfull(window=1, unasked=1)
    d.ask("child", parent="open-0")
    d.submit("child")
    d.ask("new")
    d.finish("open-0")
    assert paused(d) == []
    d.finish("child")
    assert paused(d) == ["open-0"]
    assert d.program("child").status is Status.PAUSED


def test_its_pin_goes_with_its_slot() -> None:
    d = overfull(window=1, unasked=1)
    d.finish("open-0")
    d.program("open-0").retained_until_ns = d.now_ns + 1
    d.ask("new")
    assert [(type(c), c.program_id) for c in d.tick()] == [(cmd.Pause, "open-0"), (cmd.Release, "open-0")]


def test_nobody_leaves_where_no_gate_holds_anything() -> None:
    """A probe alone: whoever is paused would run on, and be paused again at each turn."""
    d = Driver(fixed(1))
    for number in range(3):
        d.run_turn(f"p{number}")
        assert of(cmd.Pause, d.tick()) == []
    assert d.ledger.programs.charges.active_roots == 3


def test_nobody_leaves_while_the_gate_is_still_open() -> None:
    d = overfull(window=1, unasked=1)
    d.finish("open-0")
    d.ask("open-0", "open-0.2")
    d.submit("open-9")
    assert d.tick() == [], "nor is it let in by us"
    d.ask("open-0", "open-0.2")
    assert paused(d) == ["open-0"]


def test_a_window_that_shrinks_later_takes_nothing_back() -> None:
    d = overfull(window=2, unasked=0)
    d.end("granted-0")
    d.submit("open-0")
    d.ask("new")
    d.tick()
    d.controller.preset = fixed(1)
    d.finish("open-0")
    assert paused(d) == []
    assert d.ledger.programs.charges.active_roots == 2


def test_without_a_limit_nobody_is_too_many() -> None:
    d = overfull(window=1, unasked=3)
    d.controller.preset = fixed(0)
    d.ask("new")
    assert d.admitted() == ["new"]
    assert d.ledger.programs.unasked == {}


def test_a_grant_that_the_gate_remembers_counts() -> None:
    """The daemon lost its memory; the engine's events come first, then the gate's state."""
    d = Driver(fixed(1))
    d.submit("a")
    d.wait(1)
    d.submit("b")
    gate = Publisher("node/gate/1")
    d.send(gate(ev.PublisherState, role="gate", grants=(ev.Grant(program_id="b"),), held_turns=()))
    d.send(gate(ev.TurnQueued, program_id="new", turn_id="new.1"))
    d.finish("a")
    d.finish("b")
    assert paused(d) == ["a"]


NAMES = [f"p{number}" for number in range(5)]
steps = st.tuples(
    st.sampled_from(["ask", "let in", "let in a child", "finish", "tick", "end"]), st.sampled_from(NAMES)
)


@given(window=st.integers(1, 3), story=st.lists(steps, min_size=10, max_size=60))
def test_the_window_is_kept_again_whatever_an_open_gate_let_in(window: int, story: list[tuple[str, str]]) -> None:
    d = Driver(fixed(window))
    granted: set[str] = set()
    arrivals: dict[str, int] = {}

    def tick() -> None:
        open_before = {name for name, program in d.ledger.programs.by_name.items() if program.open_turns}
        commands = d.tick()
        taken = {c.program_id for c in of(cmd.Pause, commands) if c.reason.startswith("an open gate")}
        assert not taken & open_before, "a running turn is never revoked"
        assert not taken & granted, "nor is a grant"
        granted.difference_update(c.program_id for c in of(cmd.Pause, commands))
        granted.update(c.program_id for c in of(cmd.Admit, commands))

    for number, (what, name) in enumerate(story):
        turn = f"turn-{number}"
        d.wait(0.01)
        if what == "ask":
            d.ask(name, turn)
        elif what == "let in":
            d.submit(name, turn)
        elif what == "let in a child":
            d.send(d.gate(ev.ProgramArrived, program_id=f"{name}-child", parent_id=name))
            d.submit(f"{name}-child", turn)
        elif what == "end":
            d.end(name)
            granted.discard(name)
        elif what == "tick":
            tick()
        else:
            for key in [key for key, turn in d.ledger.turns.running.items() if turn.program_id == name]:
                d.finish(name, key)
        for known, program in d.ledger.programs.by_name.items():
            assert arrivals.setdefault(known, program.arrived_at_ns) == program.arrived_at_ns
    d.ask("who comes now finds the gate closed")
    tick()
    for key, turn in list(d.ledger.turns.running.items()):
        d.finish(turn.program_id, key)
        tick()
    roots = {name for name, program in d.ledger.programs.by_name.items() if program.status is Status.ACTIVE}
    roots -= {name for name in roots if d.program(name).parent_id}
    assert len(roots) <= max(window, len(roots & granted))


def test_a_child_whose_engine_tells_of_it_first_takes_no_slot() -> None:
    """Gate and engine have connections of their own; the child passed on its root's grant, as its gate says."""
    d = Driver(fixed(2))
    d.ask("root")
    assert d.admitted() == ["root"]
    d.submit("child")
    assert d.ledger.programs.charges.active_roots == 2, "nobody knows yet whose child it is"
    d.send(d.gate(ev.ProgramArrived, program_id="child", parent_id="root"))
    assert d.ledger.programs.charges.active_roots == 1
    assert d.program("child").root_id == "root"
    d.ask("other")
    assert d.admitted() == ["other"]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_a_root_that_runs_does_not_become_a_child_of_its_own_child() -> None:
    d = Driver(fixed(2))
    d.submit("root")
    d.ask("child", parent="root")
    d.send(d.gate(ev.ProgramArrived, program_id="root", parent_id="child"))
    assert d.program("root").parent_id == ""
    assert d.program("child").root_id == "root"
