"""Plots that compare presets: distributions at one load, and mean completion time over loads."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.report.compare import Group, mean_jct_s, name_of
from controlplane.lab.report.style import MUTED, colour_of, plot_style, svg_of, tidy
from controlplane.lab.workload.run import RunResult

MAX_STEPS = 300
_Floats = NDArray[np.float64]


def jct_values_s(run: RunResult) -> _Floats:
    """Completion times of the programs that ended well, ascending."""
    return np.sort([p.completion_ns / NANOSECONDS_PER_SECOND for p in run.programs if not p.failed])


def ttft_values_s(run: RunResult) -> _Floats:
    """Times to first token of the turns that ended well, holds included, ascending."""
    ttft_ns = [turn.first_token_ns - turn.queued_ns for turn in run.turns if not turn.error]
    return np.sort(np.asarray(ttft_ns, dtype=np.float64)) / NANOSECONDS_PER_SECOND


def jct_cdf_svg(group: Group) -> str:
    """Which share of the programs has ended within a time, a curve per run; what failed never ends."""
    curves = [(run, jct_values_s(run), len(run.programs)) for run in group.runs]
    return _cdf_svg(curves, "completion time, arrival to end (s)", "share of programs", log=False)


def ttft_cdf_svg(group: Group) -> str:
    """Which share of the turns has its first token within a time, a curve per run."""
    curves = [(run, ttft_values_s(run), len(run.turns)) for run in group.runs]
    return _cdf_svg(curves, "time to first token, hold included (s)", "share of turns", log=True)


def rate_svg(groups: Sequence[Group]) -> str:
    """Mean completion time against the open arrival rate, a line per preset."""
    presets = list(dict.fromkeys(name_of(run) for group in groups for run in group.runs))
    with plot_style():
        figure = Figure(figsize=(8.6, 3.2), layout="constrained")
        axes = figure.subplots()
        tidy(axes)
        axes.margins(x=0.06)
        ends: list[tuple[float, float, str]] = []
        for preset in presets:
            points = [(group.rate, mean) for group in groups if (mean := mean_jct_s(group, preset)) is not None]
            rates, means = zip(*points, strict=True) if points else ((), ())
            axes.plot(rates, means, color=colour_of(preset), marker="o", markersize=5, linewidth=2)
            if points:
                ends.append((*points[-1], preset))
        axes.set_ylim(bottom=0)
        axes.set_xticks([group.rate for group in groups], [f"{group.rate:g}" for group in groups])
        axes.set_xlabel("arrival rate (programs/s)")
        axes.set_ylabel("mean completion time (s)")
        _name_ends(axes, ends)
        return svg_of(figure)


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


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Write each line's name at its right end, apart where the ends are close."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.07
    y_free = low - gap
    for rate, mean, preset in sorted(ends, key=lambda end: end[1]):
        y_free = max(mean, y_free + gap)
        axes.annotate(
            preset,
            (rate, y_free),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=colour_of(preset),
            fontweight="bold",
            annotation_clip=False,
        )
