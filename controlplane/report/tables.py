"""The side-by-side table on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from controlplane.report.compare import BASELINE, SUBJECT, Group, caveats, column_names, group_runs, rows, verdict
from controlplane.workload.run import RunResult

LABEL_WIDTH = 38
CELL_WIDTH = 13


def comparison_tables(runs: Sequence[RunResult], *, baseline: str = BASELINE, width: int = 120) -> list[Table]:
    """Metrics down, runs across, grouped by arrival rate; as many tables as ``width`` columns of text need.

    The best value of each rate is bold and marked with ``*``.
    """
    columns = max(1, (width - LABEL_WIDTH) // CELL_WIDTH)
    tables: list[Table] = []
    page: list[Group] = []
    for group in group_runs(runs):
        if page and sum(len(other.runs) for other in page) + len(group.runs) > columns:
            tables.append(_table(page, baseline))
            page = []
        page.append(group)
    return [*tables, _table(page, baseline)] if page else tables


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


def _table(groups: Sequence[Group], baseline: str) -> Table:
    table = Table(caption="* best of its load", caption_justify="left", header_style="bold")
    table.add_column("", no_wrap=True)
    for group in groups:
        for index, name in enumerate(column_names(group)):
            head = group.title if index == 0 else ""
            table.add_column(f"{head}\n{name}", justify="right", no_wrap=True)
    for parts in zip(*(rows(group, baseline) for group in groups), strict=True):
        cells = [
            f"[bold green]{cell.text} *[/]" if cell.best else f"{cell.text}  "
            for row in parts
            for cell in row.cells
        ]
        table.add_row(parts[0].label, *cells, end_section=parts[0].label.startswith("mean JCT vs"))
    return table
