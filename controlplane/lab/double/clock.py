"""Engine time: the time in which this process ran, scaled, from 0 at the start."""

from controlplane import clocks


class EngineClock:
    """Integer nanoseconds that run ``time_scale`` times faster than the wall. Any thread may read it."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self._start_ns = clocks.awake_ns()

    def now_ns(self) -> int:
        return int((clocks.awake_ns() - self._start_ns) * self.time_scale)
