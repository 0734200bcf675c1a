"""Systems side by side at one rate, and whether a system met its targets there."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ab.bootstrap import Bootstrap, Run, Sample, Statistic, jct_percentile, mean_jct, ttft_percentile
from ab.results import RUN, Figures, Row
from ab.systems import PRIORITY, STOCK
from ab.tuning import best_window, mean_jcts, window_of
from controlplane.lab.workload.interval import Interval

MET, NOISE, MISSED = "met", "missed, within noise", "MISSED"
BEST_RATIO = 1.5
BELOW_SATURATION_RATIO = 1.05
_STOCK = (STOCK, PRIORITY)
P95_JCT, P99_TTFT = jct_percentile(95), ttft_percentile(99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What was asked of a system, and what came of it. ``ratio``: the system's figure over the other's."""

    what: str
    ratio: Interval
    most: float

    @property
    def verdict(self) -> str:
        if self.ratio.value <= self.most:
            return MET
        return NOISE if self.ratio.low <= self.most else MISSED


class Comparison:
    """The rows of one rate: the seeds that every system has been run with.

    ``static`` is the name of the best static window's system, None where there is none.
    """

    def __init__(self, rows: Sequence[Row], scenario: str, rate: float) -> None:
        self.rate = rate
        mine = [r for r in rows if r.cell.scenario == scenario and r.cell.rate == rate and r.cell.purpose == RUN]
        self.systems = _ordered({row.cell.system for row in mine})
        by_system = {name: {r.cell.seed: r for r in mine if r.cell.system == name} for name in self.systems}
        common = set.intersection(*(set(by_seed) for by_seed in by_system.values())) if by_system else set()
        self.seeds = sorted(common)
        self.seeds_left_out = sorted({seed for by_seed in by_system.values() for seed in by_seed} - common)
        self.rows = {name: [by_system[name][seed] for seed in self.seeds] for name in self.systems}
        self.tuned = best_window(mean_jcts(rows, scenario), rate)
        self.static = self._best_static()
        self._runs = {name: [Run(row) for row in self.rows[name]] for name in self.systems}
        first = self.rows[self.systems[0]] if self.systems else []
        self._bootstrap = Bootstrap([row.programs for row in first])
        self._samples: dict[tuple[str, Statistic], Sample] = {}

    def _best_static(self) -> str | None:
        """The tuned one; without tuning the best of those that were run, which flatters it."""
        named = f"static-{self.tuned}"
        if named in self.systems:
            return named
        static = [name for name in self.systems if self.rows[name] and window_of(self.rows[name][0])]
        return min(static, key=lambda name: self.mean(name, "jct_mean_s"), default=None)

    @property
    def candidates(self) -> list[str]:
        """The systems that are judged: not what a stock engine or a fixed window does."""
        return [name for name in self.systems if name not in _STOCK and not name.startswith("static-")]

    @property
    def references(self) -> list[str]:
        """What a candidate is judged against, as far as it was run."""
        return [name for name in (*_STOCK, self.static) if name is not None and name in self.systems]

    def mean(self, system: str, figure: str) -> float:
        """A figure's mean over the seeds."""
        found = (getattr(row if hasattr(row, figure) else row.figures, figure) for row in self.rows[system])
        return float(statistics.mean(found))

    def _lowest(self, figure: str) -> str | None:
        return min(self.references, key=lambda name: self.mean(name, figure), default=None)

    def total(self, system: str, figure: str) -> int:
        """A count's sum over the seeds."""
        return sum(getattr(row.figures, figure) for row in self.rows[system])

    def ratio(self, above: str, below: str, statistic: Statistic = mean_jct) -> Interval:
        """How many times the figure of ``above`` is that of ``below``, with its interval."""
        return self._sample(above, statistic).over(self._sample(below, statistic))

    def _sample(self, system: str, statistic: Statistic) -> Sample:
        key = (system, statistic)
        if key not in self._samples:
            self._samples[key] = self._bootstrap.sample(self._runs[system], statistic)
        return self._samples[key]

    def makespan_ratio(self, above: str, below: str) -> Interval:
        """The same of makespans, which have no programs to resample: the interval spans the seeds."""
        pairs = zip(self.rows[above], self.rows[below], strict=True)
        ratios = [a.figures.makespan_s / b.figures.makespan_s for a, b in pairs]
        value = self.mean(above, "makespan_s") / self.mean(below, "makespan_s")
        return Interval(value=value, low=min(ratios), high=max(ratios))

    def targets(self, system: str, saturated_from: float) -> list[Target]:
        """What is asked of it at this rate, against what it was run beside."""
        found = []
        saturated = self.rate >= saturated_from
        for name in self.references:
            # Below saturation only the stock engine's mean is the measure: no window is needed there.
            if saturated or name == STOCK:
                most = 1.0 if saturated else BELOW_SATURATION_RATIO
                found.append(Target(what=f"mean JCT / {name}", ratio=self.ratio(system, name), most=most))
        for what, figure, statistic in (("p95 JCT", "jct_p95_s", P95_JCT), ("p99 TTFT", "ttft_p99_s", P99_TTFT)):
            best = self._lowest(figure)
            if best is not None:
                ratio = self.ratio(system, best, statistic)
                found.append(Target(what=f"{what} / best ({best})", ratio=ratio, most=1.0))
        if STOCK in self.systems:
            found.append(Target(what="makespan / stock", ratio=self.makespan_ratio(system, STOCK), most=1.0))
        return found


def _ordered(names: set[str]) -> list[str]:
    """Stock first, as it is and by its priorities, then static windows by size, then the others by name."""

    def key(name: str) -> tuple[int, int, str]:
        if name in _STOCK:
            return (0, _STOCK.index(name), "")
        window = name.removeprefix("static-")
        return (1, int(window), "") if window != name else (2, 0, name)

    return sorted(names, key=key)


FIGURES = (
    *(name for name in Figures.__struct_fields__ if name.endswith(("_s", "_rate", "_min"))),
    *("first_ttft_p50_s", "first_ttft_p99_s", "later_ttft_p50_s", "later_ttft_p99_s", "engine_cpu_turn_s"),
)
"""The figures that are averaged over seeds."""
