"""A comparison on a terminal: single runs side by side, a sweep's presets by loads, and progress until then."""

import contextlib
import json as stdlib_json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from controlplane.core.model.text import printable
from controlplane.lab.compare.rows import (
    BASELINE,
    JCT,
    LABELS,
    SUBJECT,
    UNKNOWN,
    Grid,
    Group,
    Line,
    LoadLevel,
    Section,
    TableCell,
    column_names,
    group_runs,
    lines,
    telemetries,
)
from controlplane.lab.compare.words import (
    grid_caveats,
    headlines,
    losses,
    plus_minus,
    run_caveats,
    verdict,
    winners,
)
from controlplane.lab.console import Console
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.tenants import jain_of
from controlplane.lab.workload.trace import Trace

_NAME_WIDTH = 24
_LOAD_WIDTH = 21
_MOST_LOSSES = 12
Advance = Callable[[str, int, int], None]


def marked(cells: Iterable[TableCell]) -> Iterator[Text]:
    """Texts of one width, the best with a star."""
    return (Text(f"{cell.text} *", "bold green") if cell.best else Text(f"{cell.text}  ") for cell in cells)


def _print(console: Console, texts: Iterable[str], style: str = "") -> None:
    for line in texts:
        console.print(line, style=style, highlight=False)


def comparison_tables(
    runs: Sequence[RunResult], *, width: int = 120, rows: Callable[[Group], list[Line]] = lines
) -> list[Table]:
    """Metrics down, runs across, grouped by arrival rate; as many tables as ``width`` columns of text need.

    The best value of each rate is bold and marked with ``*``. ``rows``: those to show of a group; what is zero in
    all of them is left out.
    """
    groups = [(group, rows(group)) for group in group_runs(runs)]
    shown = {line.label for _, found in groups for line in found if line.says_something}
    groups = [(group, [line for line in found if line.label in shown]) for group, found in groups]
    columns = _columns_of(groups, width)
    pages: list[list[_Part]] = [[]]
    for group, found in groups:
        for start in range(0, len(group.runs), columns):
            part = _Part(group, found, slice(start, min(start + columns, len(group.runs))))
            if sum(other.size for other in pages[-1]) + part.size > columns:
                pages.append([])
            pages[-1].append(part)
    return [_runs_table(page) for page in pages if page]


def _columns_of(groups: Sequence[tuple[Group, list[Line]]], width: int) -> int:
    """How many runs fit beside one another, so that no figure is cut."""
    label = max((len(line.label) for _, found in groups for line in found), default=0)
    cells = [len(cell.text) + 2 for _, found in groups for line in found for cell in line.cells]
    heads = [len(text) for group, _ in groups for text in (group.head, *column_names(group))]
    return max(1, (width - label - 4) // (max([*cells, *heads], default=0) + 3))  # with padding and borders


def print_comparison(runs: Sequence[RunResult], console: Console | None = None) -> None:
    """Print the tables, the loads at which the default preset is not better, and what limits the comparison."""
    console = console or Console()
    for table in comparison_tables(runs, width=console.width):
        console.print(table)
    groups = group_runs(runs)
    _print(console, filter(None, [verdict(groups)]), "bold")
    _print(console, (f"Note: {caveat}" for caveat in run_caveats(groups)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Runs of one group that stand in one table."""

    group: Group
    lines: list[Line]
    runs: slice

    @property
    def size(self) -> int:
        return int(self.runs.stop - self.runs.start)


def _runs_table(parts: Sequence[_Part]) -> Table:
    telemetry = telemetries([run for part in parts for run in part.group.runs])
    caption = "* best of its load" + (f"; telemetry {', '.join(telemetry)}" if telemetry else "")
    table = Table(caption=caption, caption_justify="left", header_style="bold")
    table.add_column("")  # it wraps where the terminal is too narrow; figures do not
    for part in parts:
        for index, name in enumerate(column_names(part.group)[part.runs]):
            head = part.group.head if index == 0 else ""
            table.add_column(f"{head}\n{name}", justify="right", no_wrap=True)
    for number, found in enumerate(zip(*(part.lines for part in parts), strict=True)):
        cells = [cell for part, line in zip(parts, found, strict=True) for cell in line.cells[part.runs]]
        is_head = number == 0 and found[0].label.startswith("mean JCT vs")
        table.add_row(found[0].label, *marked(cells), end_section=is_head)
    return table


def print_sweep(grid: Grid, console: Console, figure: str = JCT, baseline: str = BASELINE) -> None:
    """The tables, then in words where presets win and lose, then what limits the comparison."""
    for section in grid.sections:
        for title, table in tables(section, figure, baseline, console.width):
            console.print(title, style="bold", highlight=False)
            console.print(table)
    _print(console, (*headlines(grid, baseline), *winners(grid)))
    if lost := losses(grid):
        console.print(f"Where {SUBJECT} has a higher mean JCT than the best of the others:", highlight=False)
        _print(console, (f"  {line}" for line in lost[:_MOST_LOSSES]))
        if len(lost) > _MOST_LOSSES:
            console.print(f"  and at {len(lost) - _MOST_LOSSES} loads more", highlight=False)
    _print(console, (f"Note: {caveat}" for caveat in grid_caveats(grid)))


def tables(
    section: Section, figure: str = JCT, baseline: str = BASELINE, width: int = 120
) -> Iterator[tuple[str, Table]]:
    """Titles and tables: the figure, then its ratio to the baseline's where that was run; best values marked.

    More loads than fit ``width`` columns of text go on in a further table.
    """
    most = max(1, (width - _NAME_WIDTH) // _LOAD_WIDTH)
    title = f"{LABELS[figure]}: {section.title}"

    def of_preset(preset: str, load: LoadLevel) -> str:
        return plus_minus(section.interval(preset, load, figure), figure)

    def against(preset: str, load: LoadLevel) -> str:
        ratio = section.ratio(preset, baseline, load, figure)
        return UNKNOWN if ratio is None else str(ratio)

    for start in range(0, len(section.loads), most):
        loads = section.loads[start : start + most]
        yield title, _table(section, loads, section.presets, of_preset, figure)
        others = [preset for preset in section.presets if preset != baseline]
        if baseline in section.presets and others:
            yield f"{title}, over {baseline}'s", _table(section, loads, others, against, figure)


def _table(
    section: Section,
    loads: Sequence[LoadLevel],
    presets: Sequence[str],
    cell: Callable[[str, LoadLevel], str],
    figure: str,
) -> Table:
    table = Table(header_style="bold")
    table.add_column("programs" if section.closed else "arrivals")
    for load in loads:
        table.add_column(load.title, justify="right", no_wrap=True)
    best = {load: section.best(load, figure) for load in loads}
    for preset in presets:
        cells = (TableCell(text=cell(preset, load), best=preset == best[load]) for load in loads)
        table.add_row(preset, *marked(cells))
    return table


@contextlib.contextmanager
def progress_bar(
    console: Console | None = None, unit: str = "programs", *more: ProgressColumn, transient: bool = False
) -> Iterator[Advance]:
    """A bar on standard error; the function it yields is told a label, what is done, and of how much."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        *more,
        console=console or Console(stderr=True),
        transient=transient,
    )
    tasks: dict[str, TaskID] = {}
    with bar:

        def advance(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done)

        yield advance


def print_tenants(runs: Sequence[RunResult], console: Console | None = None) -> None:
    """Print what each tenant got, for runs that have tenants."""
    found = [run for run in runs if run.tenants]
    if not found:
        return
    head = ("run", "tenant", "weight", "programs", "JCT mean (s)", "JCT p95 (s)", "KV x time", "by weight", "Jain")
    table = Table(
        header_style="bold",
        caption="KV x time while turns of each tenant were held and programs still came",
        caption_justify="left",
    )
    for name in head:
        table.add_column(name, justify="left" if name in ("run", "tenant") else "right", no_wrap=True)
    for run in found:
        for number, got in enumerate(run.tenants):
            first = number == 0
            table.add_row(
                run.label if first else "",
                got.tenant,
                f"{got.weight:g}",
                str(got.programs),
                f"{got.jct_mean_s:.1f}",
                f"{got.jct_p95_s:.1f}",
                f"{got.kv_share:.1%}",
                f"{got.fair_share:.1%}",
                f"{jain_of(run.tenants):.3f}" if first else "",
                end_section=number == len(run.tenants) - 1,
            )
    (console or Console()).print(table)


_SECRET_OPTIONS = ("--api-key", "--header", "-H")


def show_runs(runs: Sequence[RunResult], *, trace: Trace, out: Path | None, json: bool) -> None:
    """Print ``runs`` and, if ``out`` is given, save them there beside a report."""
    for problem in trace.rejected[:5]:
        print(f"rejected: {printable(problem)}", file=sys.stderr)  # noqa: T201
    if len(trace.rejected) > 5:
        print(f"rejected: {len(trace.rejected) - 5} more programs", file=sys.stderr)  # noqa: T201
    for note in trace.notes:
        print(printable(note), file=sys.stderr)  # noqa: T201
    if json:
        listing = [
            {"label": run.label, "preset": run.preset, **run.summary.to_json(), **_tenants_of(run)} for run in runs
        ]
        print(stdlib_json.dumps(listing, indent=2))  # noqa: T201
    else:
        print_comparison(runs)
        print_tenants(runs)
    if out is not None:
        from controlplane.lab.compare.html import ReportOptions, write_report

        save_runs(runs, out)
        write_report(runs, out / "report.html", ReportOptions(command=without_secrets(sys.argv)))
        print(f"report: {out / 'report.html'}", file=sys.stderr)  # noqa: T201


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The command, for others to run again, without keys."""
    shown: list[str] = []
    for word in command:
        name, equals, _ = word.partition("=")
        if shown and shown[-1] in _SECRET_OPTIONS:
            shown.append("***")
        elif equals and name in _SECRET_OPTIONS:
            shown.append(f"{name}=***")
        elif word.startswith("-H") and word != "-H":
            shown += ["-H", "***"]
        else:
            shown.append(re.sub(r"(?<=://)\S*@", "", word))
    return tuple(shown)


def _tenants_of(run: RunResult) -> dict[str, object]:
    return {"tenants": [asdict(tenant) for tenant in run.tenants]} if run.tenants else {}


def save_runs(runs: Sequence[RunResult], out: Path) -> list[Path]:
    """Write each run as JSON into ``out``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for run in runs:
        path = out / f"{re.sub(r'[^A-Za-z0-9.]+', '-', run.label)}.json"
        run.save(path)
        paths.append(path)
    return paths
