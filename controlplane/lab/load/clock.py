"""Trace time: the clock that every recorded figure is in, ``time_scale`` times faster than the wall clock."""

import time

from anyio import sleep

from controlplane.core.model.errors import require
from controlplane.core.model.types import NANOSECONDS_PER_SECOND


class TraceClock:
    """Nanoseconds of trace time since ``start`` (since construction before that).

    Raises ``ConfigError`` for a ``time_scale`` that is not positive.
    """

    def __init__(self, time_scale: float = 1.0) -> None:
        require("time_scale", time_scale, low=0, high=float("inf"), ends="()")
        self.time_scale = time_scale
        self._origin_ns = time.monotonic_ns()

    def start(self) -> None:
        """Make this instant zero."""
        self._origin_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return round((time.monotonic_ns() - self._origin_ns) * self.time_scale)

    def wall_s(self, trace_ns: float) -> float:
        """How long ``trace_ns`` of trace time takes on the wall clock, in seconds."""
        return trace_ns / self.time_scale / NANOSECONDS_PER_SECOND

    async def sleep_ns(self, trace_ns: float) -> None:
        """Never shorter than asked, unlike one sleep of a loop that keeps time in milliseconds."""
        deadline_s = time.monotonic() + self.wall_s(trace_ns)
        rest_s = self.wall_s(trace_ns)
        while rest_s > 0:
            await sleep(rest_s)
            rest_s = deadline_s - time.monotonic()

    async def sleep_until_ns(self, trace_ns: int) -> None:
        await self.sleep_ns(trace_ns - self.now_ns())
