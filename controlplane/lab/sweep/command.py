"""``penstock sweep``: what is missing is run, then all of it is told."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from rich.progress import TimeRemainingColumn

from controlplane.lab.compare.rows import BASELINE, JCT, Grid
from controlplane.lab.compare.terminal import print_sweep, progress_bar
from controlplane.lab.console import Console
from controlplane.lab.sim.clairvoyant import simulated_preset
from controlplane.lab.sweep import results
from controlplane.lab.sweep.executors import LOCAL, Executor, executor
from controlplane.lab.sweep.run_cell import check_workloads, code
from controlplane.lab.sweep.runner import run_missing
from controlplane.lab.sweep.spec import Cell, SweepSpec, cells, load_sweep

INTERRUPTED = 130


def run_sweep(
    file: Path,
    *,
    out: Path | None = None,
    jobs: int = 0,
    on: str = LOCAL,
    figure: str = JCT,
    baseline: str = BASELINE,
    redo: bool = False,
    dry: bool = False,
) -> int:
    """Run what is missing, print the tables, name the report's command. Returns how many runs went wrong.

    Raises ``ConfigError`` and ``UnknownPolicy`` before any work.
    """
    spec = load_sweep(file)
    if baseline not in spec.names:
        simulated_preset(baseline)
    path = out or file.with_suffix(".csv")
    wanted = list(cells(spec))
    there = results.done(results.read(path), wanted, code() if redo else "")
    missing = [cell for cell in wanted if cell not in there]
    stderr = Console(stderr=True)
    for note in check_workloads(spec) if missing else ():
        stderr.print(note, highlight=False, soft_wrap=True)
    stderr.print(f"{len(wanted)} runs, {len(there)} of them in {path}", highlight=False)
    if dry:
        return 0
    failed = _run(spec, missing, path, executor(on, jobs, len(missing)), stderr) if missing else 0
    keys = {results.key_of(cell) for cell in wanted}
    rows = [row for row in results.read(path) if tuple(row[key] for key in results.KEYS) in keys]
    print_sweep(Grid(rows), Console(), figure, baseline)
    stderr.print(f"all figures: {path}; plots: penstock sweep-report {path}", highlight=False, soft_wrap=True)
    if failed:
        stderr.print(f"{failed} runs went wrong: column `error` of {path}; the same command tries them again")
    return failed


def _run(spec: SweepSpec, missing: Sequence[Cell], path: Path, on: Executor, console: Console) -> int:
    """As ``run_missing``, with a bar. Raises ``SystemExit`` after Ctrl-C."""
    with on as workers, progress_bar(console, "runs", TimeRemainingColumn()) as advance:
        done, total = count(), len(missing)
        advance("sweep", next(done), total)

        def note(cell: Cell, error: str) -> None:
            advance("sweep", next(done), total)
            if error:
                where = f"{cell.preset} {cell.arrival} seed {cell.seed}, {cell.workload} on {cell.hardware}"
                console.print(f"{where}: {error}", highlight=False)

        try:
            return run_missing(spec, missing, path, workers, note)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on with what is in {path}", highlight=False)
            raise SystemExit(INTERRUPTED) from None
