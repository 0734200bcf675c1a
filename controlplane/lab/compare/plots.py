"""Plots that compare: distributions at one load, and figures against the load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.compare.rows import Group, LoadLevel, Section, mean_jct_s, name_of
from controlplane.lab.compare.style import MUTED, colour_of, marks_of, plot_style, svg_of, tidy
from controlplane.lab.workload.interval import Interval
from controlplane.lab.workload.run import RunResult

MAX_STEPS = 300
_Floats = NDArray[np.float64]


def jct_values_s(run: RunResult) -> _Floats:
    """Completion times of the programs that ended well, ascending."""
    return np.sort([p.completion_ns / NANOSECONDS_PER_SECOND for p in run.programs if not p.failed])


def ttft_values_s(run: RunResult) -> _Floats:
    """Times to first token of the turns that ended well, holds included, ascending."""
    ttft_ns = [turn.first_token_ns - turn.queued_ns for turn in run.turns if not turn.error and turn.first_token_ns]
    return np.sort(np.asarray(ttft_ns, dtype=np.float64)) / NANOSECONDS_PER_SECOND


def jct_cdf_svg(group: Group) -> str:
    """Which share of the programs has ended within a time, a curve per run; what failed never ends."""
    curves = [(run, jct_values_s(run), len(run.programs)) for run in group.runs]
    return _cdf_svg(curves, "completion time, arrival to end (s)", "share of programs", log=False)


def ttft_cdf_svg(group: Group) -> str:
    """Which share of the turns has its first token within a time, a curve per run."""
    curves = [(run, ttft_values_s(run), len(run.turns)) for run in group.runs]
    return _cdf_svg(curves, "time to first token, hold included (s)", "share of turns", log=True)


def rate_svg(groups: Sequence[Group], predicted: Sequence[Group] = ()) -> str:
    """Mean completion time against the open arrival rate, a line per preset, broken where it was predicted."""
    presets = list(dict.fromkeys(name_of(run) for group in groups for run in group.runs))
    with plot_style():
        figure = Figure(figsize=(8.6, 3.2), layout="constrained")
        axes = figure.subplots()
        tidy(axes)
        axes.margins(x=0.06)
        for preset in presets:
            colour = colour_of(preset)
            line = "none" if predicted else "-"  # few were run, and what lies between them was predicted
            means = _means_s(groups, preset)
            axes.plot(*means, color=colour, marker="o", markersize=6, linewidth=2, linestyle=line, label=preset)
            if predicted:
                told = f"{preset}, simulated"
                axes.plot(*_means_s(predicted, preset), color=colour, linewidth=1.2, linestyle="--", label=told)
        axes.set_ylim(bottom=0)
        rates = sorted({group.rate for group in (*groups, *predicted)})
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.set_xlabel("arrival rate (programs/s)")
        axes.set_ylabel("mean completion time (s)")
        axes.legend()
        return svg_of(figure)


def _means_s(groups: Sequence[Group], preset: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    points = [(group.rate, mean) for group in groups if (mean := mean_jct_s(group, preset)) is not None]
    rates, means = zip(*points, strict=True) if points else ((), ())
    return rates, means


def _cdf_svg(curves: Sequence[tuple[RunResult, _Floats, int]], xlabel: str, ylabel: str, *, log: bool) -> str:
    """A curve for each run: its values, and of how many they are the ones that were measured."""
    with plot_style():
        figure = Figure(figsize=(6.4, 3.3), layout="constrained")
        axes = figure.subplots()
        tidy(axes)
        longest = 1.0
        names: set[str] = set()
        for run, values, count in curves:
            if not values.size:
                continue
            share = np.arange(1, values.size + 1) / count
            shown = np.unique(np.linspace(0, values.size - 1, min(values.size, MAX_STEPS)).astype(int))
            x, y = values[shown], share[shown]
            if not log:
                x, y = np.concatenate(([0.0], x)), np.concatenate(([0.0], y))
            name = name_of(run)
            label = None if name in names else f"{name} (median {np.median(values):.3g} s)"
            names.add(name)
            axes.step(x, y, where="post", color=colour_of(name), linewidth=1.9, label=label)
            longest = max(longest, float(values[-1]))
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.minorticks_off()
        else:
            axes.set_xlim(0, longest)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        if names:
            axes.legend(loc="lower right")
        else:
            axes.text(0.5, 0.5, "nothing ended", transform=axes.transAxes, ha="center", color=MUTED)
        return svg_of(figure)


_LOG_FROM = 12.0  # a figure that spans more than so many times its least is drawn on a logarithmic axis
_DODGE_RATIO = 0.035  # of the axis between two presets at one load, so that their error bars stand apart
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


def _found(section: Section, preset: str, load: LoadLevel, panel: Panel, baseline: str) -> Interval | None:
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
