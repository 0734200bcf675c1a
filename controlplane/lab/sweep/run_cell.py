"""One run of a grid, in a worker process."""

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import extract_tb

import msgspec

from controlplane.core.model.errors import ControlPlaneError
from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import run_of, simulate, unknown_tools
from controlplane.lab.sweep.resolve import bound_jct_s, found, saturation_rate
from controlplane.lab.sweep.spec import Cell, SweepSpec, experiment
from controlplane.lab.workload.provenance import ROOT, code_digest, revision

Figures = dict[str, float]
_DECIDING = ("core", "lab/sim", "lab/workload", "lab/experiment.py", "lab/simulate.py")


class CellOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run: its figures, or why it has none, and which code it was."""

    figures: Figures = {}
    error: str = ""
    code: str = ""  # digest of what a result depends on
    revision: str = ""


def attempt(run: Callable[[SweepSpec, Cell], Figures], spec: SweepSpec, cell: Cell) -> CellOutcome:
    """``run`` the cell. What goes wrong is told in its row: one run's bug is no reason to lose the others."""
    figures: Figures = {}
    error = ""
    try:
        figures = run(spec, cell)
    except ControlPlaneError as problem:
        error = str(problem)
    except Exception as bug:
        at = extract_tb(bug.__traceback__)[-1]
        error = f"{type(bug).__name__}: {bug} ({Path(at.filename).name}:{at.lineno})"
    return CellOutcome(figures=figures, error=error, code=code(), revision=_revision())


def run_cell(spec: SweepSpec, cell: Cell) -> Figures:
    """The run's figures by name: its summary's, and what it took to simulate.

    ``cpu_s``, ``wall_s`` and ``turns_per_cpu_min`` are of the run itself, without reading the trace and finding the
    ideal times, which all runs of this process share. Raises ``ControlPlaneError``.
    """
    asked = experiment(spec, cell)
    run = run_of(asked)
    ideal = _ideal(run.engine)
    ideal.of_all(run.programs, asked.workload.shared_prefix)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    result = simulate(run, ideal=ideal)
    cpu_s = time.process_time() - began_cpu_s
    place = asked.workload, asked.hardware
    return {
        "rate": result.rate,
        "programs": run.roots,
        **{name: value or 0 for name, value in result.summary.to_json().items()},  # a column of numbers
        "kv_pool_tokens": run.engine.size_tokens,
        "saturation_rate": saturation_rate(*place),
        "bound_jct_mean_s": bound_jct_s(*place, cell.arrival, cell.seed),
        "cpu_s": round(cpu_s, 3),
        "wall_s": round(time.perf_counter() - began_s, 3),
        "turns_per_cpu_min": round(60 * result.summary.turns_ended / max(cpu_s, 1e-9)),
    }


@functools.cache
def code() -> str:
    """Digest of the code that a result depends on, as it was when first asked for."""
    return code_digest(ROOT / "controlplane" / part for part in _DECIDING)


@functools.cache
def _revision() -> str:
    return revision()


def check_workloads(spec: SweepSpec) -> Iterator[str]:
    """Read each workload; yields what to know of it.

    Raises ``ConfigError`` for one that cannot be read.
    """
    for workload in spec.workload:
        if note := unknown_tools(workload):
            yield f"{workload.title}: {note}"
        for hardware in spec.hardware:
            if hardware.pool_programs or any("load:" in text for text in workload.arrivals or spec.arrivals):
                yield found(workload, hardware)


@functools.lru_cache(maxsize=64)
def _ideal(engine: EngineSpec) -> IdealTimes:
    """Solo times on that engine, computed once for all runs of this process."""
    return IdealTimes(engine.build)
