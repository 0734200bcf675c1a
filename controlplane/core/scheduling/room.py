"""Who of the queue finds room: now on one engine, and, if it is new, over the time to come.

A program that comes back needs room for its context; it was counted when it was let in. A newcomer also has to
find room for what it will grow to beside the others' growth. By a forecast whoever does not fit is passed over, so
that nobody waits beside room that would do for him; one that is overdue is not: the room is kept until it does.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from controlplane.core.model.types import QueuedProgram
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling.hold_reasons import Binding, Reason

MOST_PASSED_OVER = 64  # programs a tick: beyond that a small one that would fit waits for its place in the order


class Room:
    """What is left of a window's room while programs are let in one after the other.

    ``needs`` tells what a newcomer will need at each point of the grid (``demand_curve.needs``).
    """

    def __init__(self, window: Window, needs: Callable[[QueuedProgram], Sequence[float]]) -> None:
        self._now = list(window.room_blocks)
        self._ahead = list(window.ahead_blocks)
        self._returning = window.returning_blocks
        self._tolerated = window.excess_ratio
        self._filled = window.filled_blocks
        self._needs = needs

    def take(self, waiting: QueuedProgram) -> Reason | None:
        """Take what the program needs; if it does not fit, say why and take nothing."""
        at = max(range(len(self._now)), key=self._now.__getitem__) if self._now else -1
        more = self._returning if waiting.turn_index else 0.0
        if at >= 0 and self._now[at] + more < waiting.blocks:
            return Reason.ROOM_NOW
        if self._ahead and not waiting.turn_index:
            left = [room - need for room, need in zip(self._ahead, self._needs(waiting), strict=True)]
            over = sum(-blocks for blocks in left if blocks < 0)
            if over > self._tolerated * sum(self._filled - blocks for blocks in left):
                return Reason.ROOM_AHEAD
            self._ahead = left
        if at >= 0:
            self._now[at] -= waiting.blocks
        return None


@dataclass(slots=True)
class Fitting:
    """Who is let in, in order; what holds back the others, and those that were passed over."""

    chosen: list[QueuedProgram] = field(default_factory=list)
    binding: Binding = field(default=Binding(Reason.SLOTS))
    passed_over: dict[str, Binding] = field(default_factory=dict)


def fitting_in(
    order: Sequence[QueuedProgram],
    slots: int,
    window: Window,
    needs: Callable[[QueuedProgram], Sequence[float]],
    overdue_ns: int,
    *,
    empty: bool = False,
    first: Collection[str] = (),
) -> Fitting:
    """The first ``slots`` of ``order`` that find room; those that began to wait at ``overdue_ns`` wait for it.

    So do those that are in ``first``. Without a forecast (MORI §4.3.1, ThunderAgent §4.3.1) nobody is passed over.
    ``empty``: nobody is in, so that somebody is let in: the first one fits then or never will.
    """
    room, found = Room(window, needs), Fitting()
    for waiting in order:
        if len(found.chosen) >= slots:
            break
        if len(found.passed_over) >= MOST_PASSED_OVER:
            found.binding = Binding(Reason.SCAN_LIMIT)
            break
        lacking = room.take(waiting)
        if lacking is None:
            found.chosen.append(waiting)
            continue
        found.passed_over[waiting.program_id] = Binding(lacking)
        is_first = waiting.program_id in first
        if is_first or not window.ahead_blocks or waiting.queued_at_ns <= overdue_ns:
            found.binding = Binding(Reason.TENANT_TURN if is_first else Reason.RESERVED, waiting.program_id)
            break
    if not found.chosen and empty and slots > 0:
        found.chosen = list(order[:1])
    return found
