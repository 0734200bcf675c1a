"""How long a sweep will take: the turns of its runs, at the pace of runs that are there already."""

import functools
import statistics
from collections.abc import Iterable, Sequence

from controlplane.lab.compare.rows import Row
from controlplane.lab.experiment import Workload
from controlplane.lab.simulate import trace_of
from controlplane.lab.sweep.spec import Cell, SweepSpec

# What all runs of bench/results/any-mix-small.csv make together, on one core of a cloud machine. Runs of one
# workload, pool or preset differ from that by a factor of less than two.
USUAL_TURNS_PER_CPU_MIN = 70_000.0


def cpu_s(spec: SweepSpec, missing: Iterable[Cell], rows: Sequence[Row]) -> float:
    """Seconds of one core that the ``missing`` runs will take, by the pace of ``rows``, or the usual one."""
    by_title = {workload.title: workload for workload in spec.workload}
    turns = sum(_turns(by_title[cell.workload]) for cell in missing)
    well = [row for row in rows if not row["error"]]
    took_s = sum(float(row["cpu_s"]) for row in well)
    per_minute = 60 * sum(float(row["turns_ended"]) for row in well) / took_s if took_s else USUAL_TURNS_PER_CPU_MIN
    return 60 * turns / per_minute if per_minute else 0.0


def in_words(seconds: float) -> str:
    """To what is worth knowing before one waits."""
    if seconds < 60:
        return "less than a minute"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 120 else f"about {minutes / 60:.1f} hours"


@functools.lru_cache(maxsize=256)
def _turns(workload: Workload) -> float:
    """Of all of its programs."""
    programs = workload.scale.apply(trace_of(workload)).programs
    return (workload.programs or len(programs)) * statistics.fmean(len(program.turns) for program in programs)
