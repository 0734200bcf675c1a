"""``penstock sweep``: what is missing is run, then all of it is told."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from controlplane.lab.sim.laboratory import simulated_preset
from controlplane.lab.sweep import parquet, results
from controlplane.lab.sweep.grid import Grid
from controlplane.lab.sweep.progress import run_with_progress
from controlplane.lab.sweep.run_cell import check_workloads, code
from controlplane.lab.sweep.spec import cells, load_sweep
from controlplane.lab.sweep.table import print_sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """As the command's; ``out`` None: beside the spec."""

    spec: Path
    out: Path | None
    jobs: int
    on: str
    figure: str
    baseline: str
    redo: bool
    dry: bool


def run_sweep(options: SweepOptions) -> int:
    """Run what is missing, print the tables, name the report's command. Returns how many runs went wrong.

    Raises ``ConfigError`` and ``UnknownPolicy`` before any work.
    """
    spec = load_sweep(options.spec)
    if options.baseline not in spec.names:
        simulated_preset(options.baseline)
    out = options.out or options.spec.with_suffix(".csv")
    if out.suffix == parquet.SUFFIX:
        parquet.require_parquet()
    path = out.with_suffix(".csv") if out.suffix == parquet.SUFFIX else out
    wanted = list(cells(spec))
    there = results.done(results.read(path), wanted, code() if options.redo else "")
    missing = [cell for cell in wanted if cell not in there]
    told = Console(stderr=True)
    for note in check_workloads(spec) if missing else ():
        told.print(note, highlight=False, soft_wrap=True)
    told.print(f"{len(wanted)} runs, {len(there)} of them in {path}", highlight=False)
    if options.dry:
        return 0
    failed = run_with_progress(spec, missing, path, on=options.on, jobs=options.jobs, console=told)
    keys = {results.key_of(cell) for cell in wanted}
    rows = [row for row in results.read(path) if tuple(row[key] for key in results.KEYS) in keys]
    print_sweep(Grid(rows), Console(), options.figure, options.baseline)
    if out != path:
        parquet.write(rows, out)
    told.print(f"all figures: {out}; plots: penstock sweep-report {path}", highlight=False, soft_wrap=True)
    if failed:
        told.print(f"{failed} runs went wrong: column `error` of {path}; the same command tries them again")
    return failed
