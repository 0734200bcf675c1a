"""A state that is larger than a message: cut, told in parts, and believed as a whole or not at all."""

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver, fixed, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.state_parts import STATE_LISTS, in_parts, joined
from controlplane.core.model.steps import run


def held(count: int, name: str = "p") -> ev.PublisherState:
    turns = tuple(ev.OpenTurn(program_id=f"{name}{n}", turn_id=f"t{n}") for n in range(count))
    return ev.PublisherState(role="gate", held_turns=turns)


def tell(d: Driver, part: ev.PublisherState) -> None:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    for name in ("publisher", "sequence", "at_ns"):
        del values[name]
    d.send(d.gate(ev.PublisherState, **values))


def test_whatever_a_state_lists_is_cut() -> None:
    others = {"publisher", "sequence", "at_ns", "role", "part", "more"}
    assert {field.name for field in fields(ev.PublisherState)} == others.union(STATE_LISTS)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 4000))
def test_parts_make_the_whole_again(turns: int, granted: int, most_bytes: int) -> None:
    state = replace(held(turns), grants=tuple(ev.Grant(program_id=f"g{n}") for n in range(granted)), sequence=7)
    parts = list(in_parts(state, most_bytes))
    assert [(part.part, part.more) for part in parts] == [(n, n < len(parts) - 1) for n in range(len(parts))]
    assert joined(parts) == state
    assert all(sum(len(getattr(part, name)) for name in STATE_LISTS) for part in parts) or not turns + granted


def test_of_a_state_that_lost_a_part_nothing_is_believed_and_it_is_asked_for() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("kept")
    first, *_, last = in_parts(held(9), 200)
    tell(d, first)
    d.gate.skip()
    tell(d, last)
    assert list(d.ledger.gates.held) == ["kept.1"]
    (asked,) = of(cmd.StateRequest, d.tick(2))
    assert asked.publisher == d.gate.name
    for part in in_parts(held(4), 200):
        tell(d, part)
    assert (list(d.ledger.gates.held), d.ledger.publishers.resync) == ([f"t{n}" for n in range(4)], {})


def test_one_that_begins_anew_replaces_what_had_come() -> None:
    d = Driver(fixed(1))
    tell(d, next(in_parts(held(9), 200)))
    for part in in_parts(held(6, "q"), 200):
        tell(d, part)
    assert {turn.program_id for turn in d.ledger.gates.held.values()} == {f"q{n}" for n in range(6)}
    tell(d, next(in_parts(held(9), 200)))
    run(d.ledger.publisher_states.forget(d.gate.name, d.now_ns))
    assert d.ledger.publisher_states.parts == {}
