"""Burn host CPU for real, in worker processes, so that a tool's CPU time stretches when CPUs are short."""

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context

from controlplane.core.model.errors import ControlPlaneError

NICENESS = 10  # engine, gate and daemon go first: the tools are what may suffer
SLICE_NS = 10_000_000  # a long burn gives its worker up after this much, so that tools share as processes do
ORPHAN_CHECK_S = 1.0


def burn_cpu(cpu_ns: int) -> int:
    """Compute until this thread has used ``cpu_ns`` of CPU; returns what it used. Runs in a worker."""
    start_ns = time.thread_time_ns()
    number = 1
    while (used_ns := time.thread_time_ns() - start_ns) < cpu_ns:
        for _ in range(500):
            number = (number * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return used_ns


def _exit_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(0)


def prepare_worker() -> None:
    """Lower the worker's priority, leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuBurner:
    """A pool of burning workers. ``workers`` 0 means twice the usable CPUs: the kernel has to choose."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers or 2 * usable_cpus()
        # forkserver: a fork of this process would copy its threads' locks.
        self._pool = ProcessPoolExecutor(
            self.workers, mp_context=get_context("forkserver"), initializer=prepare_worker
        )

    async def start(self) -> None:
        """Start every worker now, so that the first tool does not pay for it. Raises ``ControlPlaneError``."""
        loop = asyncio.get_running_loop()
        first = [loop.run_in_executor(self._pool, burn_cpu, 1_000_000) for _ in range(self.workers)]
        try:
            await asyncio.gather(*first)
        except BrokenExecutor as error:
            raise ControlPlaneError(
                "the worker processes that burn CPU for tools could not start (a script that replays needs "
                '`if __name__ == "__main__":` around its work); a CPU ratio of 0 does without them'
            ) from error

    async def burn(self, cpu_ns: int) -> bool:
        """Use ``cpu_ns`` of CPU, a slice at a time; False where the workers have died."""
        loop = asyncio.get_running_loop()
        try:
            while cpu_ns > 0:
                cpu_ns -= await loop.run_in_executor(self._pool, burn_cpu, min(cpu_ns, SLICE_NS))
        except (BrokenExecutor, RuntimeError):
            return False
        return True

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
