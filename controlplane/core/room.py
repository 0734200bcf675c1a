"""Who of the queue finds room: now on one engine, and, if it is new, over the time to come.

A program that comes back needs room for its context; it was counted when it was let in. A newcomer also has to
find room for what it will grow to beside the others' growth. Whoever does not fit is passed over, so that nobody
waits beside room that would do for him; one that is overdue is not: the room is kept until it does.
"""

from collections.abc import Callable, Sequence

from controlplane.core.policies import Window
from controlplane.core.types import QueuedProgram

_MOST_PASSED_OVER = 64  # programs a tick: beyond that a small one that would fit waits for its place in the order


class Room:
    """What is left of a window's room while programs are let in one after the other.

    ``needs`` tells what a newcomer will need at each point of the grid (``forecast.needs``).
    """

    def __init__(self, window: Window, needs: Callable[[QueuedProgram], Sequence[float]]) -> None:
        self._now = list(window.room_blocks)
        self._ahead = list(window.ahead_blocks)
        self._returning = window.returning_blocks
        self._tolerated = window.excess_ratio
        self._filled = window.filled_blocks
        self._needs = needs

    def take(self, waiting: QueuedProgram) -> bool:
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
) -> list[QueuedProgram]:
    """The first ``slots`` of ``order`` that find room; those that began to wait at ``overdue_ns`` wait for it.

    Without a forecast (MORI §4.3.1, ThunderAgent §4.3.1) nobody is passed over. ``empty``: nobody is in, so that
    somebody is let in: the first one fits then or never will.
    """
    room = Room(window, needs)
    chosen: list[QueuedProgram] = []
    passed_over = 0
    for waiting in order:
        if len(chosen) >= slots or passed_over >= _MOST_PASSED_OVER:
            break
        if room.take(waiting):
            chosen.append(waiting)
        elif not window.ahead_blocks or waiting.queued_at_ns <= overdue_ns:
            break
        else:
            passed_over += 1
    return chosen or list(order[:1] if empty and slots > 0 else ())
