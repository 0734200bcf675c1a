"""Two clocks: one to judge others by, one to judge one's own rights by.

Whoever judges another's silence counts only time in which this process ran (``awake_ns``): whoever was stopped
(SIGSTOP, a paused VM, swap, a loop that stalled) could not have heard anything. Whoever goes by a right that ends,
such as a lease, counts all time, that of a suspended machine as well (``elapsed_ns``): others ran meanwhile.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable

_TICK_S = 0.1
_MOST_STEP_NS = 500_000_000  # between two ticks; less than any silence that is judged


class AwakeClock:
    """Nanoseconds in which whoever calls ``tick`` did run, from where ``source_ns`` began. It never goes back.

    :param source_ns: a monotonic clock.
    :param most_step_ns: what at most counts of the time between two ticks, and since the last one. Many ticks come
        within it where nothing is wrong.
    """

    def __init__(
        self, source_ns: Callable[[], int] = time.monotonic_ns, *, most_step_ns: int = _MOST_STEP_NS
    ) -> None:
        self._source_ns, self._most_step_ns = source_ns, most_step_ns
        self._last = (source_ns(), source_ns())  # replaced as a whole: other threads read it

    def tick(self) -> None:
        """Tell that this process runs. Call it in one thread only."""
        source_ns = self._source_ns()
        self._last = (source_ns, self._at(source_ns))

    def now_ns(self) -> int:
        """The clock's time. In any thread."""
        return self._at(self._source_ns())

    def _at(self, source_ns: int) -> int:
        ticked_ns, awake_ns = self._last
        return awake_ns + min(max(0, source_ns - ticked_ns), self._most_step_ns)


class _Process:
    """This process's clock, which a loop drives, or a thread where no loop does."""

    def __init__(self) -> None:
        self.clock = AwakeClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def now_ns(self) -> int:
        if self._thread is None and (self._loop is None or self._loop.is_closed()):
            with self._beginning:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._tick_on, name="penstock-clock", daemon=True)
                    self._thread.start()
        return self.clock.now_ns()

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tick_in(loop)

    def _tick_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self.clock.tick()
            loop.call_later(_TICK_S, self._tick_in, loop)

    def _tick_on(self) -> None:
        while self._loop is None or self._loop.is_closed():
            self.clock.tick()
            time.sleep(_TICK_S)
        self._thread = None

    def forget(self) -> None:
        """In a child after a fork, where neither the thread nor the loop runs on."""
        self.__init__()  # type: ignore[misc]


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)


def awake_ns() -> int:
    """Time in which this process ran, in nanoseconds of no epoch. Its first use begins a thread that ticks."""
    return _process.now_ns()


def awake_s() -> float:
    """``awake_ns`` in seconds."""
    return _process.now_ns() / 1e9


def tick_in(loop: asyncio.AbstractEventLoop) -> None:
    """Count from now on the time in which this loop turns: one that stalls hears nothing. Call it in its thread."""
    _process.follow(loop)


_SUSPENDED_TOO = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ns() -> int:
    """Time that went by, in nanoseconds of no epoch, that of a suspended machine as well."""
    return time.clock_gettime_ns(_SUSPENDED_TOO)


def elapsed_s() -> float:
    """``elapsed_ns`` in seconds."""
    return elapsed_ns() / 1e9
