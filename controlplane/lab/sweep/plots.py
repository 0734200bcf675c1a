"""A section's plots: figures against the load, a line a preset with error bars; and the uses of the KV pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from controlplane.lab.report.style import MUTED, colour_of, marks_of, plot_style, svg_of, tidy
from controlplane.lab.sweep.grid import Load, Section
from controlplane.lab.workload.interval import Interval

_LOG_FROM = 12.0  # a figure that spans more than so many times its least is drawn on a logarithmic axis
_DODGE_RATIO = 0.035  # of the axis between two presets at one load, so that their error bars stand apart
_MOST_COLUMNS = 6
_TOP_RATIO = 1.5  # of the highest mean: how far an error bar may stretch the axis


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure to draw. ``over_baseline``: as the ratio to the baseline's, seed by seed."""

    figure: str
    title: str
    unit: str
    over_baseline: bool = False


PANELS = (
    Panel("jct_mean_s", "Mean JCT", "seconds"),
    Panel("jct_p95_s", "p95 JCT", "seconds"),
    Panel("jct_mean_s", "Mean JCT over {baseline}'s", "ratio", over_baseline=True),
    Panel("ttft_p95_s", "p95 TTFT, hold included", "seconds"),
    Panel("cache_hit_ratio", "Cache hit rate", ""),
    Panel("steps_per_min", "Throughput", "turns/min"),
)
USES = {
    "pool_decode_ratio": ("decoding", "#3d7fd9"),
    "pool_prefill_ratio": ("prefilling", "#52b7c4"),
    "pool_recompute_ratio": ("computing again", "#d9534f"),
    "pool_caching_ratio": ("caching", "#e2b14c"),
    "pool_unused_ratio": ("unused", "#b9c0c9"),
}


def lines_svg(section: Section, presets: Sequence[str], baseline: str) -> str:
    """Six panels with one legend. Without the baseline's runs there is no ratio to draw."""
    with plot_style():
        return svg_of(lines_figure(section, presets, baseline))


def lines_figure(section: Section, presets: Sequence[str], baseline: str) -> Figure:
    """As ``lines_svg``."""
    figure = Figure(figsize=(12.4, 6.9))
    figure.subplots_adjust(left=0.055, right=0.99, top=0.875, bottom=0.075, hspace=0.36, wspace=0.2)
    panels = [panel for panel in PANELS if not panel.over_baseline or baseline in section.presets]
    for axes, panel in zip(figure.subplots(2, 3).flat, panels, strict=False):
        _panel(axes, section, presets, panel, baseline)
    for axes in figure.axes[len(panels) :]:
        axes.set_visible(False)
    styles = marks_of(presets)
    handles = [
        Line2D(
            [], [], color=colour_of(name), marker=marker, linestyle=line, markersize=5.5, linewidth=2, label=name
        )
        for name, (marker, line) in styles.items()
    ]
    figure.legend(
        handles=handles, loc="upper left", ncols=6, bbox_to_anchor=(0.045, 1.0), handlelength=2.8, fontsize=10
    )
    return figure


def _panel(axes: Axes, section: Section, presets: Sequence[str], panel: Panel, baseline: str) -> None:
    tidy(axes)
    positions = {load: index for index, load in enumerate(section.loads)}
    drawn: list[float] = []
    for number, (preset, (marker, line)) in enumerate(marks_of(presets).items()):
        points = [
            (positions[load] + _DODGE_RATIO * (number - (len(presets) - 1) / 2), found)
            for load in section.loads
            if (found := _found(section, preset, load, panel, baseline)) is not None
        ]
        if not points:
            continue
        means = [found.value for _, found in points]
        drawn += means
        axes.errorbar(
            [x for x, _ in points],
            means,
            yerr=_errors([found for _, found in points]),
            color=colour_of(preset),
            marker=marker,
            linestyle=line,
            markersize=4.5,
            linewidth=1.7,
            elinewidth=0.9,
            capsize=1.8,
            alpha=0.95,
        )
    axes.set_title(panel.title.format(baseline=baseline))
    _ordinate(axes, panel, drawn)
    axes.set_xlim(-0.35, len(section.loads) - 0.65)
    axes.set_xticks(list(positions.values()), [f"{load.size:g}" for load in section.loads])
    axes.set_xlabel("programs at once" if section.closed else "arrival rate (programs/s)")
    if panel.unit:
        axes.set_ylabel(panel.unit)


def _found(section: Section, preset: str, load: Load, panel: Panel, baseline: str) -> Interval | None:
    if panel.over_baseline:
        return None if preset == baseline else section.ratio(preset, baseline, load, panel.figure)
    return section.interval(preset, load, panel.figure)


def _errors(found: Sequence[Interval]) -> Any:
    """Below and above each mean, as matplotlib has it; 0 where there is no interval."""
    below = [max(0.0, each.value - each.low) if each.is_known else 0.0 for each in found]
    above = [each.high - each.value if each.is_known else 0.0 for each in found]
    return [below, above]


def _ordinate(axes: Axes, panel: Panel, drawn: Sequence[float]) -> None:
    """From 0, or logarithmic where the means lie far apart; error bars may run off the top."""
    low, high = min(drawn, default=0.0), max(drawn, default=1.0)
    if panel.figure.endswith("_ratio"):
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        return
    if low > 0 and high / low > _LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylim(low / _TOP_RATIO, high * _TOP_RATIO)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        bars = [*axes.get_ylim(), high]
        axes.set_ylim(0, max(high * 1.05, min(max(bars), high * _TOP_RATIO)) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(6))
    if panel.over_baseline:
        axes.axhline(1.0, color=MUTED, linewidth=1.0, linestyle=(0, (3, 2)))


def uses_svg(section: Section) -> str:
    """For each load a bar a preset: the pool's blocks times time by what they did, mean over seeds."""
    with plot_style():
        return svg_of(uses_figure(section))


def uses_figure(section: Section) -> Figure:
    """As ``uses_svg``."""
    loads, presets = section.loads, section.presets
    columns = min(len(loads), _MOST_COLUMNS)
    rows = -(-len(loads) // columns)
    height = 0.35 + rows * (0.6 + 0.235 * len(presets))
    figure = Figure(figsize=(12.4, height))
    figure.subplots_adjust(left=0.135, right=0.978, top=1 - 0.62 / height, bottom=0.28 / height, wspace=0.07)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes in panels[len(loads) :]:
        axes.set_visible(False)
    for number, (axes, load) in enumerate(zip(panels, loads, strict=False)):
        starts = [0.0] * len(presets)
        for figure_name, (_, colour) in USES.items():
            widths = [
                found.value if (found := section.interval(preset, load, figure_name)) is not None else 0.0
                for preset in presets
            ]
            axes.barh(range(len(presets)), widths, left=starts, color=colour, height=0.74, linewidth=0)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        axes.set_xlim(0, 1)
        axes.set_ylim(len(presets) - 0.4, -0.6)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1] if number + 1 == len(loads) else [0, 0.5]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.set_yticks(range(len(presets)), presets if number % columns == 0 else [""] * len(presets))
        axes.set_title(load.title if load.closed else f"{load.size:g} programs/s", fontsize=9)
    handles = [Patch(facecolor=colour, label=label) for label, colour in USES.values()]
    figure.legend(handles=handles, loc="upper left", ncols=len(USES), bbox_to_anchor=(0.125, 1.0), fontsize=9.5)
    return figure
