"""Threads in virtual time: an event loop for each, and a scheduler that runs one step of one of them at a time.

A step is what an event loop does between two awaits. So anything may happen between any two awaits of a thread:
another one's step, a message's arrival, a freeze, a kill.
"""

import asyncio
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

_FUNERAL_ROUNDS = 4  # a task may do something about its end once or twice
_HARDLY_S = 1e-9  # timers are floats of seconds, the clock is whole nanoseconds


class Stuck(AssertionError):
    """Everybody waits and no timer is set."""


class ThreadLoop(asyncio.BaseEventLoop):
    """One thread's event loop. It reads no file, waits for no socket, and only the scheduler runs it."""

    def __init__(self, scheduler: "Scheduler", name: str) -> None:
        super().__init__()
        self.name = name
        self.frozen_until_ns = 0
        self._scheduler = scheduler
        self.set_exception_handler(lambda _, context: scheduler.on_exception(name, context))
        scheduler.threads.append(self)

    def time(self) -> float:
        return self._scheduler.now_ns / 1e9

    def _write_to_self(self) -> None:
        """Nobody sleeps in a system call that another thread would have to end."""

    @property
    def can_run(self) -> bool:
        return bool(self._ready) and self.frozen_until_ns <= self._scheduler.now_ns

    def next_ns(self) -> int | None:
        """When there is something to do: a timer's time, or the end of a freeze."""
        if self._ready:
            return self.frozen_until_ns
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._scheduled:
            return None
        return max(self.frozen_until_ns, int(self._scheduled[0]._when * 1e9) + 1)

    def ring(self) -> None:
        """Make ready whose time has come."""
        end_s = self.time() + _HARDLY_S
        while self._scheduled and self._scheduled[0]._when <= end_s:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)

    def step(self) -> None:
        """What is next in the line."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def end(self) -> None:
        """The thread is killed: its tasks see nothing but their own clean-up, and nobody sees that."""
        self.frozen_until_ns = 0
        self.set_exception_handler(lambda *_: None)
        for _ in range(_FUNERAL_ROUNDS):
            for task in asyncio.all_tasks(self):
                task.cancel()
            while self._ready:
                self.step()
        self._scheduled.clear()
        self.close()


class Scheduler:
    """Virtual time. ``now_ns`` moves only when nobody has anything to do."""

    def __init__(self, random: Random) -> None:
        self.now_ns = 1_000_000_000
        self.steps = 0
        self.threads: list[ThreadLoop] = []
        self.unhandled: list[str] = []
        self._random = random
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Something that happens outside of all threads: an arrival, a fault."""
        self._count += 1
        heapq.heappush(self._events, (max(when_ns, self.now_ns), self._count, what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now_ns + round(delay_s * 1e9), what)

    def kill(self, threads: list[ThreadLoop]) -> None:
        for thread in threads:
            self.threads.remove(thread)
            thread.end()

    def on_exception(self, name: str, context: dict[str, Any]) -> None:
        """What no task of a thread took care of."""
        self.unhandled.append(f"{name}: {context.get('message')}: {context.get('exception')!r}")

    def run(self, until_ns: int) -> None:
        """Raises ``Stuck`` if nothing can ever happen again."""
        events, choose = self._events, self._random.random
        while True:
            able = [thread for thread in self.threads if thread.can_run]
            if able:
                able[int(choose() * len(able))].step()
                self.steps += 1
                continue
            if events and events[0][0] <= self.now_ns:
                heapq.heappop(events)[2]()
                continue
            if not self._advance(until_ns):
                return

    def _advance(self, until_ns: int) -> bool:
        times = [when_ns for thread in self.threads if (when_ns := thread.next_ns()) is not None]
        if self._events:
            times.append(self._events[0][0])
        if not times:
            raise Stuck("everybody waits and no timer is set")
        next_ns = max(self.now_ns, min(times))
        if next_ns > until_ns:
            self.now_ns = until_ns
            return False
        self.now_ns = next_ns
        for thread in self.threads:
            if thread.frozen_until_ns <= next_ns:
                thread.ring()
        return True
