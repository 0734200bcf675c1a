"""How sure a comparison is: 95% intervals by resampling seeds, and programs within a seed.

A resample draws as many seeds as there are, with replacement, and for each of them as many of its programs, with
replacement; every system gets the same draw, as program *i* of a seed is the same program with the same arrival
under each of them. A figure is computed for each seed of the draw and averaged over them, as the reported one is.
Programs of one run meet in one engine and are not independent of each other, so that it is the seeds that carry the
interval: with one or two of them it is too narrow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ab.results import Row
from controlplane.lab.workload.interval import Interval, drawn_interval

RESAMPLES = 1000
_Floats = NDArray[np.float64]
Statistic = Callable[["Run", NDArray[np.int64]], float]


class Run:
    """One row as arrays: JCT of each program, TTFT of each of its turns. A program that failed has no JCT."""

    def __init__(self, row: Row) -> None:
        longest = max(len(turns) for turns in row.ttft_s)
        self.jct_s = np.array([np.nan if jct is None else jct for jct in row.jct_s])
        self.ttft_s = np.full((len(row.ttft_s), max(1, longest)), np.nan)
        for index, turns in enumerate(row.ttft_s):
            self.ttft_s[index, : len(turns)] = turns
        self.programs = len(row.jct_s)


def mean_jct(run: Run, chosen: NDArray[np.int64]) -> float:
    """Of the programs that ended."""
    known = _known(run.jct_s[chosen])
    return float(known.mean()) if known.size else float("nan")


def jct_percentile(percent: float) -> Statistic:
    """Of the programs that ended."""
    return lambda run, chosen: _percentile(run.jct_s[chosen], percent)


def ttft_percentile(percent: float) -> Statistic:
    """Of all turns."""
    return lambda run, chosen: _percentile(run.ttft_s[chosen].ravel(), percent)


def _percentile(values: _Floats, percent: float) -> float:
    known = _known(values)
    return float(np.percentile(known, percent)) if known.size else float("nan")


def _known(values: _Floats) -> _Floats:
    return values[~np.isnan(values)]


class Bootstrap:
    """The draws of one comparison: ``programs`` of each seed, the same for every system.

    ``resamples`` 0 means ``RESAMPLES``.
    """

    def __init__(self, programs: Sequence[int], *, seed: int = 0, resamples: int = 0) -> None:
        rng = np.random.default_rng(seed)
        count = len(programs)
        self._whole = [np.arange(n) for n in programs]
        self._draws = [
            [(int(s), rng.integers(0, programs[s], programs[s])) for s in rng.integers(0, count, count)]
            for _ in range(resamples or RESAMPLES)
        ]

    def sample(self, runs: Sequence[Run], statistic: Statistic) -> "Sample":
        """The figure of these runs, one of each seed: its mean over the seeds, and that of every draw."""
        value = np.mean([statistic(run, whole) for run, whole in zip(runs, self._whole, strict=True)])
        drawn = [np.mean([statistic(runs[s], chosen) for s, chosen in draw]) for draw in self._draws]
        return Sample(value=float(value), drawn=np.array(drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A figure, and what it was in every draw."""

    value: float
    drawn: _Floats

    def over(self, other: "Sample") -> Interval:
        """How many times the other's figure this is. Both must come of one ``Bootstrap``."""
        return drawn_interval(self.value / other.value, self.drawn / other.drawn)
