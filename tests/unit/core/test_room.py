"""Who finds room, by hand. A newcomer is held against the forecast, who comes back is not."""

from collections.abc import Sequence

import pytest

from controlplane.core.model.types import QueuedProgram
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling import room
from controlplane.core.scheduling.room import fitting_in

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
    return " ".join(each.program_id for each in found.chosen)


def test_not_very_many_are_passed_over_in_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_PASSED_OVER", 2)
    into = window(100, ahead=(0.0, 0.0))
    queue = [waiting("a", 101, turns=1), waiting("b", 101, turns=1), waiting("c", 1, turns=1)]
    assert chosen(queue[1:], into) == "c"
    assert chosen(queue, into) == ""
