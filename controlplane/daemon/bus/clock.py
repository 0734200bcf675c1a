"""Time for the shell: integer nanoseconds that survive a restart, and may run faster than the wall clock."""

import time
from collections.abc import Callable

from controlplane import clocks
from controlplane.core.model.types import NANOSECONDS_PER_SECOND

# Scaled times are counted from here, so that a factor of 100 still fits 63 bits.
EPOCH_NS = 1_735_689_600 * NANOSECONDS_PER_SECOND  # 2025-01-01


class Clock:
    """``scale`` nanoseconds pass here for each on the wall.

    It is anchored to the wall clock once and then counts the time in which this process runs (``clocks``): whatever
    is judged by it, nobody's silence is longer than we listened. A restart goes on where the wall clock is, and
    a step of that one while running is not seen. One that was set back between two runs is made up for:
    ``go_on_from``. Where the wall clock was never set this one begins at 0, since no event is told at a negative
    time. ``wall_ns`` and ``awake_ns`` are the two clocks below it.
    """

    def __init__(
        self,
        scale: float = 1.0,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        awake_ns: Callable[[], int] = clocks.awake_ns,
    ) -> None:
        self.scale = scale
        self._ahead_ns = 0  # of the wall clock
        self._awake_ns = awake_ns
        self._anchor_wall_ns = wall_ns()
        self._anchor_awake_ns = awake_ns()
        self.go_on_from(0)

    def now_ns(self) -> int:
        elapsed_ns = self._awake_ns() - self._anchor_awake_ns
        return self.from_wall_ns(self._anchor_wall_ns + elapsed_ns)

    def go_on_from(self, least_ns: int) -> float:
        """Show no less than ``least_ns``, which this clock showed before a restart; the seconds that it lacked."""
        behind_ns = max(0, least_ns - self.now_ns())
        self._ahead_ns += behind_ns
        return self.wall_seconds(behind_ns)

    def from_wall_ns(self, wall_ns: int) -> int:
        return round((wall_ns - EPOCH_NS) * self.scale) + self._ahead_ns

    def duration_ns(self, wall_s: float) -> int:
        return round(wall_s * self.scale * NANOSECONDS_PER_SECOND)

    def wall_seconds(self, duration_ns: int) -> float:
        return duration_ns / self.scale / NANOSECONDS_PER_SECOND
