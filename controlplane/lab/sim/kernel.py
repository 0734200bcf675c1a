"""Virtual time: what is scheduled happens in the order of (time, rank, order of scheduling)."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from controlplane.core.model.errors import LocalEventError

Action = Callable[..., None]
Handle = list[Any]
"""A scheduled action: [time, rank, serial, action, arguments]; opaque to callers."""


class Kernel:
    """A heap of actions. Deterministic: no clock, no randomness."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.executed = 0
        self._heap: list[Handle] = []
        self._serial = 0

    def schedule(self, at_ns: int, rank: int, action: Action, *arguments: Any) -> Handle:
        """Have ``action(*arguments)`` called at a time. Raises ``LocalEventError`` for the past."""
        if at_ns < self.now_ns:
            raise LocalEventError(f"scheduled at {at_ns} ns, which is before {self.now_ns} ns")
        self._serial += 1
        handle: Handle = [at_ns, rank, self._serial, action, arguments]
        heappush(self._heap, handle)
        return handle

    @staticmethod
    def cancel(handle: Handle) -> None:
        """Forget a scheduled action; one that has happened stays so."""
        handle[3] = None

    def run(self, done: Callable[[], bool] | None = None) -> None:
        """Run all actions, or until ``done()``."""
        heap = self._heap
        while heap and (done is None or not done()):
            handle = heappop(heap)
            action = handle[3]
            if action is None:
                continue
            self.now_ns = handle[0]
            handle[3] = None
            self.executed += 1
            action(*handle[4])
