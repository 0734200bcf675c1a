"""The tool host: usable CPUs, their use, and how long tasks wait for them (PSI)."""

import math
import os
from pathlib import Path

import psutil

from controlplane.core.events import HostSampled

_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_PSI_CPU = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))


class HostProbe:
    """Reads in tens of microseconds."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call only starts the measurement

    def sample(self, cpus: float = 0.0) -> HostSampled:
        """CPU use since the last call; the stall ratio is the kernel's average over 10 s.

        ``cpus``, unless 0, is told instead of what is detected: tools may run elsewhere.
        """
        return HostSampled(
            cpus=cpus or usable_cpus(),
            cpu_use_ratio=psutil.cpu_percent() / 100,
            cpu_stall_ratio=cpu_stall_ratio(),
        )


def usable_cpus() -> float:
    """CPUs that the affinity mask and the cgroup's quota leave us."""
    cpus = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = _CGROUP_CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else min(cpus, max(0.01, int(quota) / int(period)))


def pressure_file() -> Path | None:
    """Where the kernel tells of CPU stalls; None where it does not."""
    return next((path for path in _PSI_CPU if _first_line(path)), None)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


def cpu_stall_ratio() -> float:
    """PSI ``some avg10`` as a ratio; 0 where the kernel does not tell."""
    for path in _PSI_CPU:
        if not (some := _first_line(path)):
            continue
        values = dict(part.split("=") for part in some.split()[1:])
        share = float(values.get("avg10", 0.0)) / 100
        return share if math.isfinite(share) else 0.0
    return 0.0
