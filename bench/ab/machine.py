"""What else the CPUs do that a run may use: an engine that shares its cores is several times slower, and unevenly.

``pin`` leaves a run one CPU, so that another one can have the next. What others do elsewhere then does not count.
"""

import contextlib
import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil

QUIET_RATIO = 0.1  # of the CPUs, taken by others: a run may begin
SLOW_RATIO = 1.25  # of the usual time of a piece of arithmetic: from there on the machine counts as slow
_LOOK_S = 3.0
ARITHMETIC_S = 1.0
_MOST_WAIT_S = 900.0


def pin(cpu: int) -> None:
    """From now on this process and all that it starts run on that CPU only. Raises ``SystemExit`` without it."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        numbers = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise SystemExit(f"--cpu {cpu}: {error.strerror}: there are {numbers}") from error


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def model_name() -> str:
    """The CPU's model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def gpu_name() -> str:
    """The model of the first GPU, and how many there are where there are several; empty: there is none."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    names = done.stdout.split("\n") if done.returncode == 0 else []
    found = [name.strip() for name in names if name.strip()]
    return f"{found[0]} (of {len(found)})" if len(found) > 1 else "".join(found)


def arithmetic_ms(look_s: float = ARITHMETIC_S) -> float:
    """Milliseconds of a fixed piece of arithmetic, the median of as many tries as fit into a second.

    Whoever shares the physical machine is seen in nothing else: it takes no time of these CPUs, it makes them slow.
    A Fourier transform, since that runs in one thread: a product of matrices has one a CPU, also where this process
    was left fewer, and then says nothing of the machine.
    """
    numbers = np.random.default_rng(1).random(1 << 17)
    tries: list[float] = []
    deadline_s = time.perf_counter() + look_s
    while not tries or time.perf_counter() < deadline_s:
        began_s = time.perf_counter()
        np.fft.rfft(numbers)
        tries.append(time.perf_counter() - began_s)
    return round(1000 * statistics.median(tries), 2)


class OthersWatch:
    """How much of the CPUs all but this process and its descendants took, from construction on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._busy_s, self._own_s = busy_s(), _own_s()

    def ratio(self) -> float:
        """Of the CPUs, 0 to 1; descendants that have ended count as others."""
        took_s = (time.monotonic() - self._began_s) * cpus()
        others_s = (busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return min(1.0, max(0.0, others_s / took_s))


def wait_for_quiet(usual_ms: float = 0.0) -> None:
    """Return once others leave the CPUs alone, or after a quarter of an hour; says so when it has to wait.

    ``usual_ms``: what ``arithmetic_ms`` takes here when nobody slows the machine down; 0: not known.
    """
    deadline_s = time.monotonic() + _MOST_WAIT_S
    while time.monotonic() < deadline_s:
        watch = OthersWatch()
        time.sleep(_LOOK_S)
        others, took_ms = watch.ratio(), arithmetic_ms()
        if others <= QUIET_RATIO and (not usual_ms or took_ms <= SLOW_RATIO * usual_ms):
            return
        taken = f"other work takes {others:.0%} of the CPUs, arithmetic {took_ms:.1f} ms"
        print(f"  waiting: {taken}{f', usually {usual_ms:.1f}' if usual_ms else ''}", flush=True)
        time.sleep(5 * _LOOK_S)
    print("  it does not become quiet: going on", flush=True)


def busy_s() -> float:
    """Of the CPUs that this process may use, since the start; what a hypervisor took counts."""
    each = psutil.cpu_times(percpu=True)
    mine = [each[number] for number in os.sched_getaffinity(0)]
    return float(sum(sum(t) - t.idle - t.iowait - t.guest - t.guest_nice for t in mine))


def _own_s() -> float:
    """CPU time of this process and all its descendants."""
    return tree_cpu_s(psutil.Process())


def tree_cpu_s(root: psutil.Process) -> float:
    """CPU time of this process and of all its descendants that live."""
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
