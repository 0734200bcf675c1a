"""What the run commands show: progress while they work, a table, JSON or a report at the end."""

import contextlib
import json as stdlib_json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from controlplane.lab.report.page import ReportOptions, write_report
from controlplane.lab.report.tables import print_comparison
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.trace import Trace

Advance = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Advance]:
    """A bar on standard error; the function it yields is told a label, what is done, and of how much."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("programs"),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
    )
    tasks: dict[str, int] = {}
    with bar:

        def advance(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = int(bar.add_task(label, total=total))
            bar.update(tasks[label], completed=done)  # type: ignore[arg-type]

        yield advance


def show_runs(runs: Sequence[RunResult], *, trace: Trace, out: Path | None, json: bool) -> None:
    """Print ``runs`` and, if ``out`` is given, save them there beside a report."""
    for problem in trace.rejected[:5]:
        print(f"rejected: {problem}", file=sys.stderr)  # noqa: T201
    if len(trace.rejected) > 5:
        print(f"rejected: {len(trace.rejected) - 5} more programs", file=sys.stderr)  # noqa: T201
    if json:
        listing = [{"label": run.label, "preset": run.preset, **run.summary.to_json()} for run in runs]
        print(stdlib_json.dumps(listing, indent=2))  # noqa: T201
    else:
        print_comparison(runs)
    if out is not None:
        save_runs(runs, out)
        write_report(runs, out / "report.html", ReportOptions(command=tuple(sys.argv)))
        print(f"report: {out / 'report.html'}", file=sys.stderr)  # noqa: T201


def save_runs(runs: Sequence[RunResult], out: Path) -> list[Path]:
    """Write each run as JSON into ``out``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for run in runs:
        path = out / f"{re.sub(r'[^A-Za-z0-9.]+', '-', run.label)}.json"
        run.save(path)
        paths.append(path)
    return paths
