"""The tool host: usable CPUs, their use, and how long tasks wait for them (PSI)."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from controlplane.core.model.events import HostSampled

CGROUP, PROC = Path("/sys/fs/cgroup"), Path("/proc")


class HostProbe:
    """Reads in tens of microseconds. Use and stall are of the CPUs that we may use, not of the whole machine's.

    Behind a cgroup's quota that is what the cgroup uses of it, else the CPUs of the affinity mask: a container that
    may use two CPUs of ninety-six is full when these are.
    """

    def __init__(
        self, cgroup: Path = CGROUP, proc: Path = PROC, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._cgroup, self._proc, self._now_s = cgroup, proc, now_s
        self._used_s, self._read_s = _used_s(cgroup), now_s()
        psutil.cpu_percent(percpu=True)  # the first call only starts the measurement

    def sample(self, cpus: float = 0.0, *, elsewhere: bool = False) -> HostSampled:
        """CPU use since the last call; the stall ratio is the kernel's average over 10 s.

        ``cpus``, unless 0, is told instead of what is detected. ``elsewhere``: tools run on another machine, so
        that nothing is told of this one's use and stalls.
        """
        here = usable_cpus(self._cgroup)
        use_ratio = self._use_ratio(here)
        return HostSampled(
            cpus=cpus or here,
            cpu_use_ratio=0.0 if elsewhere else use_ratio,
            cpu_stall_ratio=0.0 if elsewhere else cpu_stall_ratio(self._cgroup, self._proc),
        )

    def _use_ratio(self, cpus: float) -> float:
        now_s, used_s = self._now_s(), _used_s(self._cgroup) if _quota_cpus(self._cgroup) else math.nan
        passed_s, more_s = now_s - self._read_s, used_s - self._used_s
        self._read_s, self._used_s = now_s, used_s
        each = psutil.cpu_percent(percpu=True)
        if math.isfinite(more_s) and passed_s > 0:
            return min(1.0, max(0.0, more_s / passed_s / cpus))
        ours = [each[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(each)] or each
        return sum(ours) / len(ours) / 100


def usable_cpus(cgroup: Path = CGROUP) -> float:
    """CPUs that the affinity mask and the cgroup's quota leave us."""
    cpus = float(len(os.sched_getaffinity(0)))
    quota = _quota_cpus(cgroup)
    return min(cpus, quota) if quota else cpus


def pressure_file(cgroup: Path = CGROUP, proc: Path = PROC) -> Path | None:
    """Where the kernel tells of CPU stalls; None where it does not."""
    files = (cgroup / "cpu.pressure", proc / "pressure" / "cpu")
    return next((path for path in files if _first_line(path)), None)


def cpu_stall_ratio(cgroup: Path = CGROUP, proc: Path = PROC) -> float:
    """PSI ``some avg10`` as a ratio; 0 where the kernel does not tell."""
    path = pressure_file(cgroup, proc)
    if path is None:
        return 0.0
    values = dict(part.split("=") for part in _first_line(path).split()[1:])
    share = float(values.get("avg10", 0.0)) / 100
    return share if math.isfinite(share) else 0.0


def _quota_cpus(cgroup: Path) -> float:
    """0: there is no quota."""
    quota, _, period = _first_line(cgroup / "cpu.max").partition(" ")
    try:
        return max(0.01, int(quota) / int(period))
    except (ValueError, ZeroDivisionError):
        return 0.0  # "max", or no such file


def _used_s(cgroup: Path) -> float:
    """CPU seconds of the cgroup; not a number where it does not tell."""
    name, _, value = _first_line(cgroup / "cpu.stat").partition(" ")
    return int(value) / 1e6 if name == "usage_usec" and value.isdigit() else math.nan


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""
