"""What happened inside one run over time: window, queue, KV pool, tools, and when either side was overloaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.compare.rows import name_of
from controlplane.lab.compare.style import CPU, INK, KV, MUTED, colour_of, plot_style, svg_of, tidy
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.series import Series

MAX_POINTS = 400
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Upper ends of the axes that the runs of one group share, so that their plots compare."""

    time_s: float
    programs: float
    queue: float
    kv_ratio: float
    tools: float
    slowdown: float


def shared_scales(runs: Sequence[RunResult]) -> Scales:
    """The smallest axes that show every run whole; the raw window may run off the top."""

    def top(name: str, least: float) -> float:
        return max([least, *(max(getattr(run.series, name), default=0) for run in runs)]) * 1.08

    time_s = max([1.0, *(run.series.t_ns[-1] / NANOSECONDS_PER_SECOND for run in runs if run.series.t_ns)])
    return Scales(
        time_s=time_s,
        programs=max(top("active", 1), top("limit", 1)),
        queue=top("queue", 1),
        kv_ratio=min(top("kv_use_ratio", 1.05), 4.0),
        tools=max(top("tools_active", 1), top("tools_waiting", 1)),
        slowdown=min(top("tool_slowdown_ratio", 2), 10.0),
    )


def timeline_svg(run: RunResult, scales: Scales) -> str:
    """The five panels of one run."""
    columns = _columns(run.series)
    with plot_style():
        figure = Figure(figsize=(6.4, 8.4), layout="constrained")
        panels = figure.subplots(5, 1, sharex=True, height_ratios=[2.2, 1.1, 1.6, 1.3, 1.1])
        colour = colour_of(name_of(run))
        _admission(panels[0], columns, colour, scales)
        _queue(panels[1], columns, colour, scales)
        _kv(panels[2], columns, colour, scales)
        _tools(panels[3], columns, scales)
        _slowdown(panels[4], columns, scales)
        for axes in panels:
            tidy(axes)
        for axes in (panels[0], panels[1], panels[3]):
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=2))
        for axes in (panels[2], panels[4]):
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        for axes in (panels[0], panels[2]):
            _shade(axes, run.series, run.series.kv_overloaded, KV)
        for axes in (panels[0], panels[3], panels[4]):
            _shade(axes, run.series, run.series.cpu_overloaded, CPU)
        panels[-1].set_xlim(0, scales.time_s)
        panels[-1].set_xlabel("time since the first arrival (s)")
        figure.align_ylabels(panels)
        return svg_of(figure)


def intervals_s(series: Series, flags: Sequence[bool]) -> list[tuple[float, float]]:
    """The time spans, in seconds, in which ``flags`` holds; a sample stands for the time to the next one."""
    spans: list[tuple[float, float]] = []
    begin: int | None = None
    for t_ns, flag in zip(series.t_ns, flags, strict=True):
        if flag and begin is None:
            begin = t_ns
        elif not flag and begin is not None:
            spans.append((begin / NANOSECONDS_PER_SECOND, t_ns / NANOSECONDS_PER_SECOND))
            begin = None
    if begin is not None:
        spans.append((begin / NANOSECONDS_PER_SECOND, series.t_ns[-1] / NANOSECONDS_PER_SECOND))
    return spans


def caption(run: RunResult) -> str:
    """What the timeline shows, in a sentence."""
    series = run.series
    limits = [limit for limit in series.limit if limit]
    if not limits:
        window = f"No admission limit; up to {max(series.active, default=0)} programs active at once"
    elif min(limits) == max(limits):
        window = f"The admission limit stayed at {limits[0]}"
    else:
        window = f"The admission limit moved between {min(limits)} and {max(limits)}"
    shares = [
        f"{side} overloaded {share:.0%} of the time"
        for side, flags in (("KV", series.kv_overloaded), ("CPU", series.cpu_overloaded))
        if (share := sum(flags) / max(1, len(flags))) > 0
    ]
    apart, told = series.kv_imbalance_ratio, ""
    if any(apart):
        told = f"; engines' KV {fmean(apart):.0%} of a pool apart in the mean, {max(apart):.0%} at most"
    return f"{window}; {', '.join(shares) or 'neither KV nor CPU overloaded'}{told}."


def _columns(series: Series) -> dict[str, _Floats]:
    """The series thinned to ``MAX_POINTS``, with what the plots derive from it."""
    count = len(series.t_ns)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int))

    def column(name: str) -> _Floats:  # zeros where an older run does not have it
        values: _Floats = np.asarray(getattr(series, name) or [0.0] * count, dtype=np.float64)[chosen]
        return values

    names = ("window", "limit", "active", "queue", "kv_use_ratio", "kv_imbalance_ratio", "tools_active")
    columns = {name: column(name) for name in (*names, "tools_waiting", "tool_slowdown_ratio")}
    columns["t_s"] = column("t_ns") / NANOSECONDS_PER_SECOND
    total, free, evictable = (column(f"kv_{part}_blocks") for part in ("total", "free", "evictable"))
    known = total > 0
    pool = np.where(known, total, 1.0)
    columns["running_ratio"] = np.where(known, (total - free - evictable) / pool, np.nan)
    columns["resident_ratio"] = np.where(known, (total - free) / pool, np.nan)
    unlimited = columns["limit"] <= 0
    columns["limit"][unlimited] = np.nan
    columns["window"][unlimited] = np.nan
    return columns


def _admission(axes: Axes, columns: dict[str, _Floats], colour: str, scales: Scales) -> None:
    t_s = columns["t_s"]
    axes.fill_between(t_s, columns["active"], step="post", color=colour, alpha=0.28, linewidth=0)
    axes.step(t_s, columns["limit"], where="post", color=colour, linewidth=1.9)
    axes.step(t_s, columns["window"], where="post", color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.set_ylim(0, scales.programs)
    axes.set_ylabel("programs")
    _head(
        axes,
        "Admission",
        Patch(facecolor=colour, alpha=0.28, label="active"),
        Line2D([], [], color=colour, linewidth=1.9, label="limit"),
        Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (3, 2)), label="window before caps"),
    )
    if np.isnan(columns["limit"]).all():
        axes.text(0.01, 0.93, "no limit", transform=axes.transAxes, va="top", color=MUTED, fontsize=8.5)


def _queue(axes: Axes, columns: dict[str, _Floats], colour: str, scales: Scales) -> None:
    axes.fill_between(columns["t_s"], columns["queue"], step="post", color=colour, alpha=0.55, linewidth=0)
    axes.set_ylim(0, scales.queue)
    axes.set_ylabel("programs")
    _head(axes, "Waiting for admission")


def _kv(axes: Axes, columns: dict[str, _Floats], colour: str, scales: Scales) -> None:
    t_s = columns["t_s"]
    axes.fill_between(t_s, columns["resident_ratio"], step="post", color=MUTED, alpha=0.16, linewidth=0)
    axes.fill_between(t_s, columns["running_ratio"], step="post", color=MUTED, alpha=0.4, linewidth=0)
    axes.step(t_s, columns["kv_use_ratio"], where="post", color=colour, linewidth=1.7)
    several = columns["kv_imbalance_ratio"].any()
    if several:
        axes.step(t_s, columns["kv_imbalance_ratio"], where="post", color=INK, linewidth=0.9)
    axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_ylim(0, scales.kv_ratio)
    axes.set_ylabel("of the pool")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _head(
        axes,
        "KV cache",
        Line2D([], [], color=colour, linewidth=1.7, label="demand"),
        Patch(facecolor=MUTED, alpha=0.5, label="running"),
        Patch(facecolor=MUTED, alpha=0.16, label="resident"),
        Patch(facecolor=KV, alpha=0.25, label="overloaded"),
        *([Line2D([], [], color=INK, linewidth=0.9, label="engines apart")] if several else ()),
    )


def _tools(axes: Axes, columns: dict[str, _Floats], scales: Scales) -> None:
    t_s = columns["t_s"]
    axes.step(t_s, columns["tools_active"], where="post", color=INK, linewidth=1.3)
    axes.step(t_s, columns["tools_waiting"], where="post", color=CPU, linewidth=1.3)
    axes.set_ylim(0, scales.tools)
    axes.set_ylabel("tools")
    _head(
        axes,
        "Tools",
        Line2D([], [], color=INK, linewidth=1.3, label="running"),
        Line2D([], [], color=CPU, linewidth=1.3, label="waiting"),
        Patch(facecolor=CPU, alpha=0.25, label="CPU overloaded"),
    )


def _slowdown(axes: Axes, columns: dict[str, _Floats], scales: Scales) -> None:
    axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.step(columns["t_s"], columns["tool_slowdown_ratio"], where="post", color=INK, linewidth=1.3)
    axes.set_ylim(0, scales.slowdown)
    axes.set_ylabel("x median")
    _head(axes, "Tool time against the tool's median")


def _head(axes: Axes, title: str, *handles: Any) -> None:
    """The panel's title at the left and its key at the right, on one line."""
    axes.set_title(title)
    if handles:
        axes.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1.01, 0.97),
            ncols=len(handles),
            handlelength=1.3,
            columnspacing=1.1,
            borderpad=0.2,
        )


def _shade(axes: Axes, series: Series, flags: Sequence[bool], colour: str) -> None:
    for begin_s, end_s in intervals_s(series, flags):
        axes.axvspan(begin_s, end_s, color=colour, alpha=0.16, linewidth=0)
