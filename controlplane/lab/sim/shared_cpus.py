"""Processor sharing: where CPUs are too few, everything that computes is slowed alike.

Demand D is the sum of what the tasks could use, C the CPUs that there are. Every task progresses at

    phi = min(1, C / D)

seconds of its own time a second. So one clock serves all of them, whatever each demands: virtual time V runs at
phi, and a task that came at V and computes for w alone ends when V has grown by w. The tasks stand in a heap by
that end: one coming or going costs O(log n).

Everything is an integer. V is kept in 2^-20 ns and rounded down whenever the tasks change, an end is rounded up to
a whole ns: nothing ends before its time, and a thousand changes delay it by less than a thousandth of a ns.

**Paper**: ours; AgentServeSim's tools know no host. The virtual clock is that of generalized processor sharing
(Parekh and Gallager, 1993); a task gets at most what it can use.
"""

from heapq import heappop, heappush
from typing import Any

_UNIT = 1 << 20  # of virtual time, in a ns
_MILLI = 1000  # CPUs are counted in thousandths


class SharedCpus:
    """The tasks that compute, at one time. Times passed in must not fall."""

    def __init__(self, cpus: float) -> None:
        self._capacity = max(1, round(cpus * _MILLI))
        self._demand = 0
        self._virtual = 0
        self._since_ns = 0  # what virtual time stands at
        self._heap: list[tuple[int, int, int, Any]] = []  # virtual end, serial, demand, task
        self._serial = 0
        self._used = 0  # thousandths of a CPU times ns, since the last reading
        self._stalled_ns = 0
        self._read_ns = 0

    def add(self, task: Any, nominal_ns: int, cpus: float, now_ns: int) -> None:
        """A task begins that takes ``nominal_ns`` on ``cpus`` CPUs of its own."""
        self._advance(now_ns)
        demand = max(1, round(cpus * _MILLI))
        self._serial += 1
        self._demand += demand
        heappush(self._heap, (self._virtual + nominal_ns * _UNIT, self._serial, demand, task))

    def take(self, cpus: float, now_ns: int) -> None:
        """Something without an end asks for so many more CPUs; fewer where it is negative."""
        self._advance(now_ns)
        self._demand += round(cpus * _MILLI)

    def take_ended(self, now_ns: int) -> list[Any]:
        """Remove the tasks that have ended by now, in the order of their ends."""
        self._advance(now_ns)
        ended = []
        heap = self._heap
        while heap and heap[0][0] <= self._virtual:
            _, _, demand, task = heappop(heap)
            self._demand -= demand
            ended.append(task)
        if not heap:
            self._virtual = 0
        return ended

    def next_end_ns(self) -> int | None:
        """When the next task ends if none comes before; None: nothing computes."""
        if not self._heap:
            return None
        left = max(0, self._heap[0][0] - self._virtual)
        if self._demand <= self._capacity:
            return self._since_ns - (-left // _UNIT)
        return self._since_ns - (-left * self._demand // (self._capacity * _UNIT))

    def read(self, now_ns: int) -> tuple[float, float]:
        """Since the last reading: the share of the CPUs that was used, and of the time that they were too few."""
        self._advance(now_ns)
        passed_ns = now_ns - self._read_ns
        used, stalled_ns = self._used, self._stalled_ns
        self._used, self._stalled_ns, self._read_ns = 0, 0, now_ns
        if not passed_ns:
            return 0.0, 0.0
        return used / (self._capacity * passed_ns), stalled_ns / passed_ns

    def _advance(self, now_ns: int) -> None:
        passed_ns = now_ns - self._since_ns
        self._since_ns = now_ns
        if self._demand <= self._capacity:
            self._virtual += passed_ns * _UNIT
            self._used += passed_ns * self._demand
        else:
            self._virtual += passed_ns * _UNIT * self._capacity // self._demand
            self._used += passed_ns * self._capacity
            self._stalled_ns += passed_ns
