"""What else this machine does: an engine that has to share its cores is several times slower, and unevenly so."""

import contextlib
import os
import time

import psutil

QUIET_RATIO = 0.1  # of the CPUs, taken by others: a run may begin
_LOOK_S = 3.0
_MOST_WAIT_S = 900.0


class OthersWatch:
    """How much of the CPUs all but this process and its descendants took, from construction on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def ratio(self) -> float:
        """Of all CPUs, 0 to 1; descendants that have ended count as others."""
        took_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return min(1.0, max(0.0, others_s / took_s))


def wait_for_quiet() -> None:
    """Return once others leave the CPUs alone, or after a quarter of an hour; says so when it has to wait."""
    deadline_s = time.monotonic() + _MOST_WAIT_S
    while time.monotonic() < deadline_s:
        watch = OthersWatch()
        time.sleep(_LOOK_S)
        if (others := watch.ratio()) <= QUIET_RATIO:
            return
        print(f"  waiting: other work takes {others:.0%} of the CPUs", flush=True)
        time.sleep(5 * _LOOK_S)
    print("  it does not become quiet: going on", flush=True)


def _busy_s() -> float:
    """Of all CPUs since the start; what a hypervisor took counts."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_s() -> float:
    """CPU time of this process and all its descendants."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
