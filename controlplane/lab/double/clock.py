"""Engine time: the wall's monotonic clock, scaled, from 0 at the start."""

import time


class EngineClock:
    """Integer nanoseconds that run ``time_scale`` times faster than the wall. Any thread may read it."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self._start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return int((time.monotonic_ns() - self._start_ns) * self.time_scale)
