"""The table of a scenario's runs in Markdown: figures, ratios over stock, and what speaks against them.

Intervals are of 95%, by resampling. A resample draws as many seeds as there are, with replacement, and for each of
them as many of its programs; every system gets the same draw, as program *i* of a seed is the same program with the
same arrival under each of them. Programs of one run meet in one engine and are not independent of each other, so
that it is the seeds that carry the interval: with one or two of them it is too narrow.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ab.machine import QUIET_RATIO
from ab.results import Row, of_a_slow_machine
from ab.systems import PRIORITY, STOCK
from controlplane.lab.workload.interval import Interval, drawn_interval
from controlplane.lab.workload.telemetry import Telemetry

RESAMPLES = 1000
MOST_RATIO = 1.03  # of stock's mean JCT, at any load
_STOCK = (STOCK, PRIORITY)
_HEADS = (
    *("programs/s", "", "mean JCT", "p95", "TTFT first p50 / p99", "later p50 / p99", "TPOT (ms)", "hit rate"),
    *("turns/min", "engine CPU a turn", "makespan", "failed", "mean JCT over stock's", "p99 TTFT over stock's"),
)
Statistic = Callable[["Run", NDArray[np.int64]], float]


class Run:
    """One row as arrays: JCT of each program, TTFT of each of its turns. A program that failed has no JCT."""

    def __init__(self, row: Row) -> None:
        longest = max(len(turns) for turns in row.ttft_s)
        self.jct_s = np.array([np.nan if jct is None else jct for jct in row.jct_s])
        self.ttft_s = np.full((len(row.ttft_s), max(1, longest)), np.nan)
        for index, turns in enumerate(row.ttft_s):
            self.ttft_s[index, : len(turns)] = turns


def mean_jct(run: Run, chosen: NDArray[np.int64]) -> float:
    """Average over the chosen programs that ended."""
    times = run.jct_s[chosen]
    ended = times[~np.isnan(times)]
    return float(ended.mean()) if ended.size else float("nan")


def p99_ttft(run: Run, chosen: NDArray[np.int64]) -> float:
    """Find the percentile over all turns of the chosen programs."""
    times = run.ttft_s[chosen].ravel()
    known = times[~np.isnan(times)]
    return float(np.percentile(known, 99)) if known.size else float("nan")


class Comparison:
    """The rows of one rate: the seeds that every system has been run with."""

    def __init__(self, rows: Sequence[Row], scenario: str, rate: float) -> None:
        self.rate = rate
        mine = [row for row in rows if row.cell.scenario == scenario and row.cell.rate == rate]
        self.systems = sorted({row.cell.system for row in mine}, key=_order)
        by_system = {name: {r.cell.seed: r for r in mine if r.cell.system == name} for name in self.systems}
        common = set.intersection(*(set(by_seed) for by_seed in by_system.values())) if by_system else set()
        self.seeds = sorted(common)
        self.seeds_left_out = sorted({seed for by_seed in by_system.values() for seed in by_seed} - common)
        self.rows = {name: [by_system[name][seed] for seed in self.seeds] for name in self.systems}
        self._runs = {name: [Run(row) for row in self.rows[name]] for name in self.systems}
        self._samples: dict[tuple[str, Statistic], NDArray[np.float64]] = {}
        self._draws = _draws([row.programs for row in next(iter(self.rows.values()), [])])

    def mean(self, system: str, figure: str) -> float:
        """Average a figure over the seeds."""
        found = (getattr(row if hasattr(row, figure) else row.figures, figure) for row in self.rows[system])
        return float(statistics.mean(found))

    def over_stock(self, system: str, statistic: Statistic) -> Interval | None:
        """Divide the system's figure by stock's; None where stock was not run."""
        if system == STOCK or STOCK not in self.systems:
            return None
        ours, theirs = (self._drawn(name, statistic) for name in (system, STOCK))
        return drawn_interval(ours[0] / theirs[0], ours[1:] / theirs[1:])

    def _drawn(self, system: str, statistic: Statistic) -> NDArray[np.float64]:
        """The figure itself, then that of every draw; each a mean over seeds."""
        if (key := (system, statistic)) not in self._samples:
            runs = self._runs[system]
            means = [np.mean([statistic(runs[seed], of) for seed, of in draw]) for draw in self._draws]
            self._samples[key] = np.array(means)
        return self._samples[key]


def _draws(programs: Sequence[int]) -> list[list[tuple[int, NDArray[np.int64]]]]:
    """All seeds with all programs, then the resamples."""
    rng, count = np.random.default_rng(0), len(programs)
    drawn = [
        [(int(s), rng.integers(0, programs[s], programs[s])) for s in rng.integers(0, count, count)]
        for _ in range(RESAMPLES if count else 0)
    ]
    return [[(seed, np.arange(n)) for seed, n in enumerate(programs)], *drawn]


def _order(name: str) -> tuple[int, int, str]:
    """Stock first, as it is and by its priorities, then static windows by size, then the others by name."""
    if name in _STOCK:
        return (0, _STOCK.index(name), "")
    window = name.removeprefix("static-")
    return (1, int(window), "") if window != name else (2, 0, name)


def latest_scenario(rows: Sequence[Row], telemetry: Telemetry | None = None) -> str | None:
    """Name the scenario of the last row; of the last one of that telemetry, where one is named."""
    mine = [row for row in rows if telemetry in (None, row.telemetry)]
    return mine[-1].cell.scenario if mine else None


def comparisons(rows: Sequence[Row], scenario: str) -> list[Comparison]:
    """Make one for each rate that was run, ascending; without those of which systems share no seed."""
    rates = sorted({row.cell.rate for row in rows if row.cell.scenario == scenario})
    return [found for rate in rates if (found := Comparison(rows, scenario, rate)).seeds]


def show(rows: Sequence[Row], scenario: str) -> str:
    """Write the table, what it is of, and what speaks against it."""
    compared = comparisons(rows, scenario)
    lines = [*_about([row for row in rows if row.cell.scenario == scenario]), ""]
    if not compared:
        return "\n".join([*lines, "no rate has yet been run with one seed for every system"])
    lines += [_line(_HEADS), _line(["---"] * len(_HEADS))]
    for one in compared:
        for number, name in enumerate(one.systems):
            lines.append(_line([f"{one.rate:g}" if number == 0 else "", name, *_figures(one, name)]))
    for one in compared:
        if one.seeds_left_out:
            left_out = ", ".join(map(str, one.seeds_left_out))
            lines.append(f"\nAt {one.rate:g}/s not every system has seed {left_out}: left out.")
    return "\n".join([*lines, "", _verdict(compared)])


def _about(rows: Sequence[Row]) -> list[str]:
    """Load, machine, versions, and what makes the runs unlike each other."""
    last = rows[-1]
    telemetry = f"telemetry {last.telemetry}"
    load = last.load if telemetry in last.load else f"{last.load}; {telemetry}"  # older rows do not name it
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    machines = sorted({row.gpu or row.cpu_model or "not noted" for row in rows})
    seeds = ", ".join(str(seed) for seed in sorted({row.cell.seed for row in rows}))
    failed = sum(row.figures.programs_failed for row in rows)
    text = f"{load}; {versions}; {', '.join(machines)}; revision {', '.join(sorted({r.revision for r in rows}))}; "
    text += f"seeds {seeds}. Other work took at most {max(row.others_ratio for row in rows):.0%} of the CPUs; "
    lines = [f"{text}{failed} programs failed. Times in s, means over seeds; in brackets 95% intervals."]
    if len(machines) > 1:
        lines.append("CAREFUL: runs on several machines")
    if disturbed := sum(row.others_ratio > QUIET_RATIO for row in rows):
        lines.append(f"CAREFUL: other work took more than {QUIET_RATIO:.0%} of the CPUs during {disturbed} runs")
    if slow := sorted(of_a_slow_machine(rows), key=lambda cell: (cell.rate, cell.seed, cell.system)):
        named = ", ".join(f"{cell.system} at {cell.rate:g}/s, seed {cell.seed}" for cell in slow)
        lines.append(f"CAREFUL: the machine was slower than for the others (--redo-slow): {named}")
    codes = {(row.cell.system, row.code) for row in rows}
    if mixed := sorted({name for name, _ in codes if sum(1 for other, _ in codes if other == name) > 1}):
        lines.append(f"CAREFUL: runs of several versions of the code: {', '.join(mixed)}")
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _figures(one: Comparison, name: str) -> list[str]:
    def mean(figure: str) -> float:
        return one.mean(name, figure)

    def ttft(*, first: bool) -> str:
        p50, p99 = (
            statistics.mean(row.ttft_s_of(percent, first=first) for row in one.rows[name]) for percent in (50, 99)
        )
        return f"{p50:.2f} / {p99:.1f}"

    ratios = (one.over_stock(name, statistic) for statistic in (mean_jct, p99_ttft))
    return [
        *(f"{mean('jct_mean_s'):.1f}", f"{mean('jct_p95_s'):.1f}", ttft(first=True), ttft(first=False)),
        *(f"{1000 * mean('tpot_mean_s'):.1f}", f"{mean('hit_rate'):.2f}", f"{mean('turns_per_min'):.0f}"),
        *(f"{mean('engine_cpu_turn_s'):.3f}", f"{mean('makespan_s'):.0f}"),
        str(sum(row.figures.programs_failed for row in one.rows[name])),
        *("" if ratio is None else str(ratio) for ratio in ratios),
    ]


def _verdict(compared: Sequence[Comparison]) -> str:
    """Name where a system that is no stock engine took longer than the budget allows."""
    above = []
    for one in compared:
        for name in (name for name in one.systems if name not in _STOCK and not name.startswith("static-")):
            ratio = one.over_stock(name, mean_jct)
            if ratio is not None and not ratio.value <= MOST_RATIO:
                surely = "" if ratio.low > MOST_RATIO else " (its interval begins below)"
                above.append(f"{name} at {one.rate:g}/s: {ratio}{surely}")
    budget = f"Budget: mean JCT at most {MOST_RATIO:g} of stock's: "
    return budget + ("MISSED by " + "; ".join(above) if above else "met.")


def to_json(rows: Sequence[Row], scenario: str) -> str:
    """Write the same, for a program to read."""
    found: list[dict[str, Any]] = []
    for one in comparisons(rows, scenario):
        ratios = {name: one.over_stock(name, mean_jct) for name in one.systems}
        found.append({
            "rate": one.rate,
            "seeds": one.seeds,
            "systems": {name: dict(zip(_HEADS[2:12], _figures(one, name), strict=False)) for name in one.systems},
            "mean_jct_over_stock": {n: [r.value, r.low, r.high] for n, r in ratios.items() if r is not None},
        })  # fmt: skip
    return json.dumps({"scenario": scenario, "rates": found})
