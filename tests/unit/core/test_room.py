"""Who finds room, by hand. A newcomer is held against the forecast, who comes back is not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controlplane.core import room
from controlplane.core.policies import Window
from controlplane.core.room import fitting_in
from controlplane.core.types import QueuedProgram

NOT_YET = -1


def waiting(name: str, blocks: int = 10, turns: int = 0, queued_at_ns: int = 0) -> QueuedProgram:
    return QueuedProgram(
        program_id=name, blocks=blocks, arrived_at_ns=0, queued_at_ns=queued_at_ns, turn_index=turns
    )


def window(*rooms: int, ahead: tuple[float, ...] = (), filled: float = 0.0, excess: float = 0.0) -> Window:
    return Window(
        limit=0,
        window=0.0,
        reason="by hand",
        room_blocks=rooms,
        ahead_blocks=ahead,
        filled_blocks=filled,
        excess_ratio=excess,
    )


def fifty_then_a_hundred(each: QueuedProgram) -> Sequence[float]:
    return (50.0, 100.0)


def chosen(queue: Sequence[QueuedProgram], into: Window, slots: int = 9, overdue_ns: int = NOT_YET) -> str:
    found = fitting_in(queue, slots, into, fifty_then_a_hundred, overdue_ns)
    return " ".join(each.program_id for each in found)


def test_no_more_are_let_in_than_there_are_slots() -> None:
    assert chosen([waiting("a"), waiting("b"), waiting("c")], window(), slots=2) == "a b"


def test_without_rooms_everybody_fits() -> None:
    assert chosen([waiting("a", 10**6), waiting("b", 10**6)], window()) == "a b"


def test_who_does_not_fit_is_passed_over() -> None:
    queue = [waiting("a", 60, turns=1), waiting("b", 60, turns=1), waiting("c", 40, turns=1)]
    assert chosen(queue, window(100, ahead=(0.0, 0.0))) == "a c"


def test_who_comes_back_may_take_more_than_its_room_where_that_is_tolerated() -> None:
    into = replace(window(100, ahead=(999.0, 999.0)), returning_blocks=20.0)
    assert chosen([waiting("a", 110, turns=1), waiting("b", 10, turns=1), waiting("c", 1, turns=1)], into) == "a b"
    assert chosen([waiting("new", 110)], into) == ""


def test_without_a_forecast_nobody_is_passed_over() -> None:
    """ThunderAgent §4.3.1 and MORI §4.3.1 let in from the head of their queue until that does not fit."""
    assert chosen([waiting("a", 60), waiting("b", 60), waiting("c", 40)], window(100)) == "a"


def test_not_very_many_are_passed_over_in_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_PASSED_OVER", 2)
    into = window(100, ahead=(0.0, 0.0))
    queue = [waiting("a", 101, turns=1), waiting("b", 101, turns=1), waiting("c", 1, turns=1)]
    assert chosen(queue[1:], into) == "c"
    assert chosen(queue, into) == ""


def test_who_is_overdue_is_not_passed_over() -> None:
    """Whoever came later would take the room again and again."""
    queue = [waiting("a", 60, 1), waiting("b", 60, 1, queued_at_ns=5), waiting("c", 40, 1, queued_at_ns=9)]
    assert chosen(queue, window(100, ahead=(0.0, 0.0)), overdue_ns=5) == "a"
    assert chosen(queue, window(100, ahead=(0.0, 0.0)), overdue_ns=4) == "a c"


def test_a_newcomer_also_needs_room_for_what_it_will_grow_to() -> None:
    queue = [waiting("new"), waiting("newer"), waiting("back", turns=3)]
    assert chosen(queue, window(1000, ahead=(100.0, 199.0), filled=500.0)) == "new back"
    assert chosen(queue, window(1000, ahead=(100.0, 200.0), filled=500.0)) == "new newer back"
    assert chosen(queue, window(1000, ahead=(-9.0, -9.0), filled=500.0)) == "back", "it was counted when it came"


def test_so_much_of_what_all_will_need_may_be_too_much() -> None:
    """Two newcomers at 100 and 150 left of 500: 50 blocks too many, of 500 and 550 that are needed then."""
    queue = [waiting("new"), waiting("newer")]
    assert chosen(queue, window(1000, ahead=(100.0, 150.0), filled=500.0, excess=50 / 1050 + 1e-9)) == "new newer"
    assert chosen(queue, window(1000, ahead=(100.0, 150.0), filled=500.0, excess=50 / 1050 - 1e-9)) == "new"


def test_what_was_not_let_in_takes_no_room() -> None:
    queue = [waiting("too large now", 101), waiting("too large later", 90), waiting("a", 100, turns=1)]
    assert chosen(queue, window(100, ahead=(50.0, 99.0), filled=500.0)) == "a"


def test_into_an_empty_engine_those_are_let_in_who_fit_or_else_the_first() -> None:
    """The first one fits then or never will."""
    queue = [waiting("large", 500), waiting("larger", 900)]
    for into in (window(100), window(1000, ahead=(10.0, 10.0), filled=50.0)):
        assert fitting_in(queue, 9, into, fifty_then_a_hundred, NOT_YET) == []
        assert fitting_in(queue, 9, into, fifty_then_a_hundred, NOT_YET, empty=True) == queue[:1]
        assert fitting_in(queue, 0, into, fifty_then_a_hundred, NOT_YET, empty=True) == []
    back = waiting("back", 60, turns=1)
    into = window(100, ahead=(10.0, 10.0), filled=50.0)
    assert fitting_in([*queue, back], 9, into, fifty_then_a_hundred, NOT_YET, empty=True) == [back]
    assert fitting_in([], 9, into, fifty_then_a_hundred, NOT_YET, empty=True) == []
