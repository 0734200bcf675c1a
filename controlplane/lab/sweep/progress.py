"""A sweep with a bar, and what to say when it is interrupted."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from controlplane.lab.sweep.executors import executor
from controlplane.lab.sweep.runner import run_missing
from controlplane.lab.sweep.spec import Cell, SweepSpec

INTERRUPTED = 130


def run_with_progress(
    spec: SweepSpec, missing: Sequence[Cell], path: Path, *, on: str, jobs: int, console: Console
) -> int:
    """As ``run_missing``, where ``on`` says. ``jobs`` 0: one for each CPU. Raises ``SystemExit`` after Ctrl-C."""
    if not missing:
        return 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        executor(on, jobs, len(missing)) as workers,
        Progress(TextColumn("{task.description}"), *columns, console=console) as bar,
    ):
        task = bar.add_task("sweep", total=len(missing))

        def note(cell: Cell, error: str) -> None:
            bar.advance(task)
            if error:
                where = f"{cell.preset} {cell.arrival} seed {cell.seed}, {cell.workload} on {cell.hardware}"
                console.print(f"{where}: {error}", highlight=False)

        try:
            return run_missing(spec, missing, path, workers, note)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on with what is in {path}", highlight=False)
            raise SystemExit(INTERRUPTED) from None
