"""Who of the queue finds room: now on one engine, and, if it is new, over the time to come.

A program that comes back needs room for its context; it was counted when it was let in. A newcomer also has to
find room for what it will grow to beside the others' growth. Whoever does not fit is passed over, so that nobody
waits beside room that would do for him; one that is overdue is not: the room is kept until it does.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from controlplane.core.policies import Window
from controlplane.core.types import QueuedProgram

MOST_PASSED_OVER = 64  # programs a tick: beyond that a small one that would fit waits for its place in the order


class Wanting(Protocol):
    """What wants room: a program that waits, or several that go together."""

    @property
    def blocks(self) -> int: ...
    @property
    def turn_index(self) -> int: ...


W = TypeVar("W", bound=Wanting)


class Room(Generic[W]):
    """What is left of a window's room while programs are let in one after the other.

    ``needs`` tells what a newcomer will need at each point of the grid (``forecast.needs``).
    """

    def __init__(self, window: Window, needs: Callable[[W], Sequence[float]]) -> None:
        self._now = list(window.room_blocks)
        self._ahead = list(window.ahead_blocks)
        self._returning = window.returning_blocks
        self._tolerated = window.excess_ratio
        self._filled = window.filled_blocks
        self._needs = needs

    def left(self, window: Window) -> Window:
        """The window with what is left of its room."""
        return replace(window, room_blocks=tuple(self._now), ahead_blocks=tuple(self._ahead))

    def reserve(self, waiting: W) -> None:
        """Take what it needs, though there may be less."""
        if self._now:
            self._now[max(range(len(self._now)), key=self._now.__getitem__)] -= waiting.blocks
        if self._ahead:
            self._ahead = [room - need for room, need in zip(self._ahead, self._needs(waiting), strict=True)]

    def take(self, waiting: W) -> bool:
        """Whether the program fits; what it needs is taken from the room if it does."""
        at = max(range(len(self._now)), key=self._now.__getitem__) if self._now else -1
        more = self._returning if waiting.turn_index else 0.0
        if at >= 0 and self._now[at] + more < waiting.blocks:
            return False
        if self._ahead and not waiting.turn_index:
            left = [room - need for room, need in zip(self._ahead, self._needs(waiting), strict=True)]
            over = sum(-blocks for blocks in left if blocks < 0)
            if over > self._tolerated * sum(self._filled - blocks for blocks in left):
                return False
            self._ahead = left
        if at >= 0:
            self._now[at] -= waiting.blocks
        return True


def fitting_in(
    order: Sequence[QueuedProgram],
    slots: int,
    window: Window,
    needs: Callable[[QueuedProgram], Sequence[float]],
    overdue_ns: int,
    *,
    empty: bool = False,
    first: Collection[str] = (),
) -> list[QueuedProgram]:
    """The first ``slots`` of ``order`` that find room; those that began to wait at ``overdue_ns`` wait for it.

    So do those that are in ``first``. Without a forecast (MORI §4.3.1, ThunderAgent §4.3.1) nobody is passed over.
    ``empty``: nobody is in, so that somebody is let in: the first one fits then or never will.
    """
    room = Room(window, needs)
    chosen: list[QueuedProgram] = []
    passed_over = 0
    for waiting in order:
        if len(chosen) >= slots or passed_over >= MOST_PASSED_OVER:
            break
        if room.take(waiting):
            chosen.append(waiting)
        elif not window.ahead_blocks or waiting.queued_at_ns <= overdue_ns or waiting.program_id in first:
            break
        else:
            passed_over += 1
    return chosen or list(order[:1] if empty and slots > 0 else ())
