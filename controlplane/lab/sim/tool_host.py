"""The host that tools run on, where they contend for its CPUs.

A tool that takes d alone and uses a share c of a CPU computes for cd and then waits for (1 - c)d. Only computing is
slowed. A tool that uses more than one CPU computes all the time and demands c of them. In which order a real tool
does both is not known, and over many tools it hardly matters (docs/adr/0007).
"""

from collections.abc import Callable
from math import exp
from typing import Any

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.sim.contention import Contention
from controlplane.lab.sim.kernel import Handle, Kernel
from controlplane.lab.sim.shared_cpus import SharedCpus

_STALL_AVERAGED_S = 10.0  # as the kernel's avg10, which the daemon's probe reads


class ToolHost:
    """Runs what tools compute on ``cpus`` CPUs."""

    def __init__(self, kernel: Kernel, rank: int, cpus: float, contention: Contention) -> None:
        self._kernel = kernel
        self._rank = rank
        self._shared = SharedCpus(cpus)
        self._contention = contention
        self._parts: dict[str, tuple[float, float]] = {}  # tool -> its time on CPUs as a ratio, and how many
        self._wake: Handle | None = None
        self._stall_ratio = 0.0
        self._sampled_ns = 0
        self._nominal_ns = 0
        self._taken_ns = 0

    @property
    def slowdown_ratio(self) -> float:
        """The time that tools took over what they would have taken alone; 0: none has ended."""
        return self._taken_ns / self._nominal_ns if self._nominal_ns else 0.0

    def run(self, tool: str, nominal_ns: int, end: Callable[..., None], *arguments: Any) -> None:
        """Call ``end(*arguments)`` when a tool that takes ``nominal_ns`` alone has ended."""
        now_ns = self._kernel.now_ns
        parts = self._parts.get(tool)
        if parts is None:
            share = self._contention.share_of(tool)
            parts = self._parts[tool] = (min(share, 1.0), max(share, 1.0))
        computing_ns = round(nominal_ns * parts[0])
        task = (now_ns, nominal_ns, nominal_ns - computing_ns, end, arguments)
        if not computing_ns:
            self._finish(task)
            return
        self._shared.add(task, computing_ns, parts[1], now_ns)
        self._plan()

    def take(self, cpus: float) -> None:
        """From now on so many more CPUs are asked for by what is no tool."""
        self._shared.take(cpus, self._kernel.now_ns)
        self._plan()

    def sample(self) -> tuple[float, float]:
        """CPU use since the last sample, and the stall as the kernel averages it; both as ratios."""
        now_ns = self._kernel.now_ns
        use_ratio, stall_ratio = self._shared.read(now_ns)
        passed_s = (now_ns - self._sampled_ns) / NANOSECONDS_PER_SECOND
        self._sampled_ns = now_ns
        self._stall_ratio += (stall_ratio - self._stall_ratio) * (1 - exp(-passed_s / _STALL_AVERAGED_S))
        return use_ratio, self._stall_ratio

    def _plan(self) -> None:
        at_ns = self._shared.next_end_ns()
        handle = self._wake
        if handle is not None:
            if handle[0] == at_ns and handle[3] is not None:
                return
            Kernel.cancel(handle)
        self._wake = None if at_ns is None else self._kernel.schedule(at_ns, self._rank, self._advance)

    def _advance(self) -> None:
        for task in self._shared.take_ended(self._kernel.now_ns):
            self._finish(task)
        self._plan()

    def _finish(self, task: tuple[int, int, int, Callable[..., None], tuple[Any, ...]]) -> None:
        """It has computed; what is left is to wait."""
        started_ns, nominal_ns, waiting_ns, end, arguments = task
        at_ns = self._kernel.now_ns + waiting_ns
        self._nominal_ns += nominal_ns
        self._taken_ns += at_ns - started_ns
        self._kernel.schedule(at_ns, self._rank, end, *arguments)
