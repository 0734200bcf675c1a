"""The side-by-side table on a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from controlplane.lab.report.compare import (
    BASELINE,
    SUBJECT,
    Group,
    caveats,
    column_names,
    group_runs,
    rows,
    telemetries,
    verdict,
)
from controlplane.lab.workload.run import RunResult

LABEL_WIDTH = 38
CELL_WIDTH = 13


def comparison_tables(runs: Sequence[RunResult], *, baseline: str = BASELINE, width: int = 120) -> list[Table]:
    """Metrics down, runs across, grouped by arrival rate; as many tables as ``width`` columns of text need.

    The best value of each rate is bold and marked with ``*``.
    """
    columns = max(1, (width - LABEL_WIDTH) // CELL_WIDTH)
    pages: list[list[_Part]] = [[]]
    for group in group_runs(runs):
        for start in range(0, len(group.runs), columns):
            part = _Part(group, slice(start, min(start + columns, len(group.runs))))
            if sum(other.size for other in pages[-1]) + part.size > columns:
                pages.append([])
            pages[-1].append(part)
    return [_table(page, baseline) for page in pages if page]


def print_comparison(
    runs: Sequence[RunResult],
    console: Console | None = None,
    *,
    subject: str = SUBJECT,
    baseline: str = BASELINE,
) -> None:
    """Print the tables, the loads at which ``subject`` is not better, and what limits the comparison."""
    console = console or Console()
    for table in comparison_tables(runs, baseline=baseline, width=console.width):
        console.print(table)
    groups = group_runs(runs)
    if said := verdict(groups, subject, baseline):
        console.print(said, style="bold", highlight=False)
    for caveat in caveats(groups):
        console.print(f"Note: {caveat}", highlight=False)


@dataclass(frozen=True, slots=True)
class _Part:
    """Runs of one group that stand in one table."""

    group: Group
    runs: slice

    @property
    def size(self) -> int:
        return int(self.runs.stop - self.runs.start)


def _table(parts: Sequence[_Part], baseline: str) -> Table:
    told = telemetries([run for part in parts for run in part.group.runs])
    caption = "* best of its load" + (f"; telemetry {', '.join(told)}" if told else "")
    table = Table(caption=caption, caption_justify="left", header_style="bold")
    table.add_column("", no_wrap=True)
    for part in parts:
        for index, name in enumerate(column_names(part.group)[part.runs]):
            head = part.group.title if index == 0 else ""
            table.add_column(f"{head}\n{name}", justify="right", no_wrap=True)
    for found in zip(*(rows(part.group, baseline) for part in parts), strict=True):
        cells = [
            f"[bold green]{cell.text} *[/]" if cell.best else f"{cell.text}  "
            for part, row in zip(parts, found, strict=True)
            for cell in row.cells[part.runs]
        ]
        table.add_row(found[0].label, *cells, end_section=found[0].label.startswith("mean JCT vs"))
    return table
