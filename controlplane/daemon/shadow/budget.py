"""What a shadow may take of the daemon's CPU time: a share, with a little in advance."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ADVANCE_NS = 1_000_000_000  # of CPU time; or three times what it took to begin, where that is more
_LITTLE = 0.25  # of the advance: from here on it is to be spent thriftily


class Budget:
    """Credit in nanoseconds of CPU time: the rest of the daemon earns it, the shadow spends it.

    A shadow that takes the share ``ratio`` of the whole takes ratio / (1 - ratio) of what the rest takes, which is
    what the rest earns it. ``thread`` and ``process`` tell the CPU time of this thread and of all.
    """

    def __init__(
        self,
        ratio: float,
        *,
        thread: Callable[[], int] = time.thread_time_ns,
        process: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.ratio = ratio
        self.spent_ns = self.last_ns = 0  # in all, and the last time
        self._advance_ns = self.credit_ns = _ADVANCE_NS
        self._thread, self._process = thread, process
        self._began_ns = self._settled_ns = process()

    @contextmanager
    def spending(self) -> Iterator[None]:
        before_ns = self._thread()
        try:
            yield
        finally:
            self.last_ns = self._thread() - before_ns
            self.spent_ns += self.last_ns
            self._settle(self.last_ns)

    @property
    def is_thin(self) -> bool:
        return self.credit_ns < _LITTLE * self._advance_ns

    @property
    def is_spent(self) -> bool:
        return self.credit_ns <= 0

    @property
    def is_overdrawn(self) -> bool:
        return self.credit_ns < -self._advance_ns

    def allows(self, cost_ns: int) -> bool:
        """Whether something that costs so much may begin, with as much again left to go on with."""
        self._advance_ns = max(_ADVANCE_NS, 3 * cost_ns)
        self._settle(0)
        return self.credit_ns >= cost_ns + self._advance_ns // 2

    @property
    def share_ratio(self) -> float:
        """What the shadow took of all the CPU time that the daemon took since the shadow was wanted."""
        whole_ns = self._process() - self._began_ns
        return self.spent_ns / whole_ns if whole_ns > 0 else 0.0

    def _settle(self, took_ns: int) -> None:
        now_ns = self._process()
        rest_ns = max(0, now_ns - self._settled_ns - took_ns)
        self._settled_ns = now_ns
        earned_ns = round(rest_ns * self.ratio / (1.0 - self.ratio))
        self.credit_ns = min(self._advance_ns, self.credit_ns + earned_ns - took_ns)
