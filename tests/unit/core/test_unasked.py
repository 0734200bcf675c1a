"""Programs that an open gate let in: too many of them give their slots back, at a turn's end."""

from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver, fixed, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status


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
