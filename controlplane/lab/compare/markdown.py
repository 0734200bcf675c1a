"""A comparison as Markdown, for a page that is kept with its results."""

from collections.abc import Iterable, Iterator, Sequence

from controlplane.lab.compare.regret import regret_title, sheets
from controlplane.lab.compare.rows import JCT, UNKNOWN, Grid, LoadLevel, Section
from controlplane.lab.compare.words import plus_minus

_PER_MINUTE = 60.0
# Title, the figures of the column, what they are multiplied by, and their form.
_COLUMNS: tuple[tuple[str, tuple[str, ...], float, str], ...] = (
    ("JCT p95 (s)", ("jct_p95_s",), 1.0, "{:.0f}"),
    ("TTFT mean (s)", ("ttft_mean_s",), 1.0, "{:.1f}"),
    ("p99", ("ttft_p99_s",), 1.0, "{:.0f}"),
    ("steps/min", ("steps_per_min",), 1.0, "{:.0f}"),
    ("tok/s", ("output_tokens_per_s",), 1.0, "{:.0f}"),
    ("hit rate", ("cache_hit_ratio",), 1.0, "{:.2f}"),
    (
        "goodput 1x, 2x, 3x (programs/min)",
        ("goodput_1x_per_s", "goodput_2x_per_s", "goodput_3x_per_s"),
        _PER_MINUTE,
        "{:.2f}",
    ),
    ("recompute", ("pool_recompute_ratio",), 1.0, "{:.0%}"),
    ("caching", ("pool_caching_ratio",), 1.0, "{:.0%}"),
)


def markdown(grid: Grid) -> str:
    """Mean JCT of every preset at every load; then all figures at each section's last load but one."""
    lines: list[str] = []
    for section in grid.sections:
        lines += _mean_jct(section)
    for section in grid.sections:
        lines += _all_figures(section, section.loads[max(0, len(section.loads) - 2)])
    return "\n".join(lines).rstrip() + "\n"


def regret_markdown(grid: Grid, baseline: str) -> str:
    """The regrets of a sweep as a page, with a table of each section."""
    page = [f"# {regret_title(grid)}", ""]
    for sheet in sheets(grid, baseline):
        page += [f"## {sheet.title}", "", sheet.says, ""]
        if sheet.rows:
            page += [*table(sheet.header, sheet.rows), ""]
        if sheet.items:
            page += [*(f"- {item}" for item in sheet.items), ""]
    return "\n".join(page).rstrip() + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table whose figures are aligned to the right of their names."""
    for cells in (header, ["---"] + ["---:"] * (len(header) - 1), *rows):
        yield f"| {' | '.join(cells)} |"


def _mean_jct(section: Section) -> Iterator[str]:
    best = {load: section.best(load, JCT) for load in section.loads}
    rows = (
        [f"`{preset}`", *(_cell(section, preset, load, is_best=best[load] == preset) for load in section.loads)]
        for preset in section.presets
    )
    header = [_unit(section), *(f"{load.size:g}" for load in section.loads)]
    yield from (f"**{section.title}**", "", *table(header, rows), "")


def _unit(section: Section) -> str:
    return "programs at once" if section.closed else "programs/s"


def _cell(section: Section, preset: str, load: LoadLevel, *, is_best: bool) -> str:
    text = plus_minus(section.interval(preset, load, JCT), JCT)
    return f"**{text}**" if is_best else text


def _all_figures(section: Section, load: LoadLevel) -> Iterator[str]:
    header = ["preset", "JCT mean (s)", *(title for title, *_ in _COLUMNS)]
    rows = []
    for preset in section.presets:
        cells = [f"`{preset}`", plus_minus(section.interval(preset, load, JCT), JCT)]
        for _, figures, factor, form in _COLUMNS:
            found = [section.interval(preset, load, figure) for figure in figures]
            cells.append(", ".join(UNKNOWN if one is None else form.format(factor * one.value) for one in found))
        rows.append(cells)
    yield from (f"**{section.title}, {load.size:g} {_unit(section)}**", "", *table(header, rows), "")
