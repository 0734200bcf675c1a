"""Several runs at a time, each on a CPU of its own: what slows the machine down slows them down alike.

A machine that is shared with strangers may be half as fast a quarter of an hour later. Systems that differ by a few
percent can be compared there only while they run.
"""

import itertools
import subprocess
from collections.abc import Callable, Sequence

from ab.plan import Job
from ab.series import INTERRUPTED


def groups(jobs: Sequence[Job], cpus: int) -> list[list[tuple[Job, int]]]:
    """What runs together, each with its CPU: those of one rate and seed, and which CPU a system has goes round.

    Where a CPU were left over, what is left of other rates and seeds runs there: a neighbour slows a run down too.
    """
    full: list[list[Job]] = []
    left: list[Job] = []
    for _, of_cell in itertools.groupby(jobs, key=lambda job: (job.cell.rate, job.cell.seed)):
        cell = list(of_cell)
        fitting = len(cell) - len(cell) % cpus
        full += _parts(cell[:fitting], cpus)
        left += cell[fitting:]
    all_of_them = full + _parts(left, cpus)
    return [
        [(job, (place + number) % cpus) for place, job in enumerate(together)]
        for number, together in enumerate(all_of_them)
    ]


def _parts(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]


def run(jobs: Sequence[Job], cpus: int, command_of: Callable[[Job, int], Sequence[str]]) -> int:
    """The exit status: 0 when all are done, 130 after Ctrl-C, else that of the first that failed."""
    for together in groups(jobs, cpus):
        processes = [subprocess.Popen(command_of(job, cpu)) for job, cpu in together]
        try:
            statuses = [process.wait() for process in processes]
        except KeyboardInterrupt:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            return INTERRUPTED
        if failed := [status for status in statuses if status]:
            return failed[0]
    return 0
