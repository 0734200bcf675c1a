"""A sweep's results on a terminal: presets down, loads across, means and paired ratios with 95% intervals."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from controlplane.lab.report.compare import BASELINE, SUBJECT, UNKNOWN
from controlplane.lab.sweep.grid import Grid, Load, Section
from controlplane.lab.sweep.wording import JCT, LABELS, caveats, headlines, losses, plus_minus, winners

_NAME_WIDTH = 24
_CELL_WIDTH = 21
_MOST_LOSSES = 12


def print_sweep(grid: Grid, console: Console, figure: str = JCT, baseline: str = BASELINE) -> None:
    """The tables, then in words where presets win and lose, then what limits the comparison."""
    for section in grid.sections:
        for title, table in tables(section, figure, baseline, console.width):
            console.print(title, style="bold", highlight=False)
            console.print(table)
    for line in (*headlines(grid, baseline), *winners(grid)):
        console.print(line, highlight=False)
    if lost := losses(grid):
        console.print(f"Where {SUBJECT} has a higher mean JCT than the best of the others:", highlight=False)
        for line in lost[:_MOST_LOSSES]:
            console.print(f"  {line}", highlight=False)
        if len(lost) > _MOST_LOSSES:
            console.print(f"  and at {len(lost) - _MOST_LOSSES} loads more", highlight=False)
    for caveat in caveats(grid):
        console.print(f"Note: {caveat}", highlight=False)


def tables(
    section: Section, figure: str = JCT, baseline: str = BASELINE, width: int = 120
) -> Iterator[tuple[str, Table]]:
    """Titles and tables: the figure, then its ratio to the baseline's where that was run; best values marked.

    More loads than fit ``width`` columns of text go on in a further table.
    """
    most = max(1, (width - _NAME_WIDTH) // _CELL_WIDTH)
    title = f"{LABELS[figure]}: {section.title}"

    def of_preset(preset: str, load: Load) -> str:
        return plus_minus(section.interval(preset, load, figure), figure)

    def against(preset: str, load: Load) -> str:
        ratio = section.ratio(preset, baseline, load, figure)
        return UNKNOWN if ratio is None else str(ratio)

    for start in range(0, len(section.loads), most):
        loads = section.loads[start : start + most]
        yield title, _table(section, loads, section.presets, of_preset, figure)
        others = [preset for preset in section.presets if preset != baseline]
        if baseline in section.presets and others:
            yield f"{title}, over {baseline}'s", _table(section, loads, others, against, figure)


def _table(
    section: Section, loads: Sequence[Load], presets: Sequence[str], cell: Callable[[str, Load], str], figure: str
) -> Table:
    table = Table(header_style="bold")
    table.add_column("programs" if section.closed else "arrivals")
    for load in loads:
        table.add_column(load.title, justify="right", no_wrap=True)
    best = {load: section.best(load, figure) for load in loads}
    for preset in presets:
        texts = [(cell(preset, load), preset == best[load]) for load in loads]
        table.add_row(preset, *(f"[bold green]{text} *[/]" if is_best else f"{text}  " for text, is_best in texts))
    return table
