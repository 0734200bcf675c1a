"""Tool phases: what an agent's tool runtime would report, and what its tools would cost this host."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from anyio import Semaphore

from controlplane.core.estimators.workload import as_seconds
from controlplane.core.model.errors import require
from controlplane.core.model.events import Event, OpenTool, ToolEnded, ToolEnqueued, ToolStarted
from controlplane.lab.load.burn import CpuBurner
from controlplane.lab.load.clock import TraceClock

INFINITY = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """How tools run. ``slots`` 0: no limit on how many at once. ``cpu_ratio``: the share that is burnt."""

    slots: int = 0
    cpu_ratio: float = 0.0
    cpu_workers: int = 0  # 0: twice the usable CPUs

    def __post_init__(self) -> None:
        require("tools.slots", self.slots, low=0, high=INFINITY)
        require("tools.cpu_ratio", self.cpu_ratio, low=0, high=1)
        require("tools.cpu_workers", self.cpu_workers, low=0, high=1024)


class ToolRunner:
    """Runs tools and reports them through ``send``; all durations are trace time."""

    def __init__(self, options: ToolOptions, *, clock: TraceClock, send: Callable[[Event], None]) -> None:
        self.running = 0
        self.waiting = 0
        self.workers_died = False
        self._starts = 0
        self._waited_ns = 0
        self._open: dict[str, OpenTool] = {}
        self._options = options
        self._clock = clock
        self._send = send
        self._slots = Semaphore(options.slots, fast_acquire=True) if options.slots else None
        self._burner = CpuBurner(options.cpu_workers) if options.cpu_ratio > 0 else None

    async def start(self) -> None:
        if self._burner:
            await self._burner.start()

    async def run(
        self, program_id: str, call_id: str, tool: str, duration_ns: int, *, reported: bool = True
    ) -> None:
        """One tool call that takes ``duration_ns`` where nothing contends with it, reported where ``reported``."""
        called: dict[str, Any] = {"program_id": program_id, "call_id": call_id, "tool": tool}
        asked_ns = self._clock.now_ns()
        self._enqueue(called, reported)
        try:
            await self._take_slot()
        except BaseException:  # it was cancelled
            self._open.pop(call_id, None)
            raise
        async with self._started(called, reported) as started_ns:
            self._starts += 1
            self._waited_ns += started_ns - asked_ns
            self.running += 1
            try:
                await self._work(duration_ns)
            finally:
                self.running -= 1
                if self._slots:
                    self._slots.release()

    @contextlib.asynccontextmanager
    async def waiting_for_others(
        self, program_id: str, call_id: str, tool: str, *, reported: bool = True
    ) -> AsyncIterator[None]:
        """A call in which sub-agents run: it takes no slot and burns nothing; reported where ``reported``."""
        called: dict[str, Any] = {"program_id": program_id, "call_id": call_id, "tool": tool}
        self._enqueue(called, reported)
        async with self._started(called, reported):
            yield

    def _enqueue(self, called: dict[str, Any], reported: bool) -> None:
        if reported:
            self._open[called["call_id"]] = OpenTool(**called, started=False)
            self._send(ToolEnqueued(**called))

    @contextlib.asynccontextmanager
    async def _started(self, called: dict[str, Any], reported: bool) -> AsyncIterator[int]:
        """The call from its start, at the time that this yields, to its end."""
        if reported:
            self._open[called["call_id"]] = OpenTool(**called, started=True)
            self._send(ToolStarted(**called))
        started_ns, ok = self._clock.now_ns(), False
        try:
            yield started_ns
            ok = True
        finally:
            if reported:
                del self._open[called["call_id"]]
                self._send(ToolEnded(**called, duration_ns=self._clock.now_ns() - started_ns, ok=ok))

    @property
    def wait_mean_s(self) -> float | None:
        """From being asked for to the start; None: none has started."""
        return as_seconds(self._waited_ns) / self._starts if self._starts else None

    def open_tools(self) -> tuple[OpenTool, ...]:
        """The reported calls that have not ended. May be asked from another thread."""
        return tuple(self._open.values())

    def close(self) -> None:
        if self._burner:
            self._burner.close()

    async def _take_slot(self) -> None:
        if self._slots is None:
            return
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1

    async def _work(self, duration_ns: int) -> None:
        burnt_ns = duration_ns * self._options.cpu_ratio if self._burner else 0.0
        if self._burner and burnt_ns and not await self._burner.burn(round(burnt_ns / self._clock.time_scale)):
            self.workers_died = True
            await self._clock.sleep_ns(burnt_ns)
        await self._clock.sleep_ns(duration_ns - burnt_ns)
