"""A sweep's tables as Markdown, for a page that is kept with its results."""

from collections.abc import Iterator

from controlplane.lab.report.compare import UNKNOWN
from controlplane.lab.sweep.grid import Grid, Load, Section
from controlplane.lab.sweep.wording import JCT, plus_minus

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


def _mean_jct(section: Section) -> Iterator[str]:
    best = {load: section.best(load, JCT) for load in section.loads}
    yield f"**{section.title}**"
    yield ""
    unit = "programs at once" if section.closed else "programs/s"
    yield f"| {unit} | " + " | ".join(f"{load.size:g}" for load in section.loads) + " |"
    yield "| --- | " + " | ".join("---:" for _ in section.loads) + " |"
    for preset in section.presets:
        cells = [_cell(section, preset, load, is_best=best[load] == preset) for load in section.loads]
        yield f"| `{preset}` | " + " | ".join(cells) + " |"
    yield ""


def _cell(section: Section, preset: str, load: Load, *, is_best: bool) -> str:
    text = plus_minus(section.interval(preset, load, JCT), JCT)
    return f"**{text}**" if is_best else text


def _all_figures(section: Section, load: Load) -> Iterator[str]:
    unit = "programs at once" if section.closed else "programs/s"
    yield f"**{section.title}, {load.size:g} {unit}**"
    yield ""
    yield "| preset | JCT mean (s) | " + " | ".join(title for title, *_ in _COLUMNS) + " |"
    yield "| --- | ---: | " + " | ".join("---:" for _ in _COLUMNS) + " |"
    for preset in section.presets:
        cells = [plus_minus(section.interval(preset, load, JCT), JCT)]
        for _, figures, factor, form in _COLUMNS:
            found = [section.interval(preset, load, figure) for figure in figures]
            cells.append(", ".join(UNKNOWN if one is None else form.format(factor * one.value) for one in found))
        yield f"| `{preset}` | " + " | ".join(cells) + " |"
    yield ""
