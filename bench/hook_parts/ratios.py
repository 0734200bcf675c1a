"""How sure a ratio is: medians, and means without the longest and shortest tenth, with 95% intervals."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.lab.workload.interval import Interval, drawn_interval

RESAMPLES = 4000
_CUT_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Interval):
    """A ratio that has a most it may be."""

    def verdict(self, most: float) -> str:
        if self.high <= most:
            return "met"
        return "missed" if self.low > most else "not told from noise"


def of_pairs(pairs: Sequence[Sequence[float]]) -> Estimate:
    """The median of all ratios; its interval by resampling pairs of engines, and ratios within a pair."""
    rng = random.Random(0)
    medians = [
        statistics.median([r for pair in rng.choices(pairs, k=len(pairs)) for r in rng.choices(pair, k=len(pair))])
        for _ in range(RESAMPLES)
    ]
    return _estimate(statistics.median([r for pair in pairs for r in pair]), medians)


def of_steps(engines: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Estimate:
    """With over without, of each engine's (with, without) steps: the mean of the engines' ratios.

    Its interval comes from resampling engines, and steps within an engine.
    """
    rng = np.random.default_rng(0)
    arrays = [tuple(np.array(side, dtype=np.float64) for side in engine) for engine in engines]
    drawn = [
        [[_drawn_mean(side, rng) for side in engine] for _ in range(RESAMPLES // 10)] for engine in arrays
    ]  # of each engine enough draws to choose from
    ratios = [[one / other for one, other in draws] for draws in drawn]
    means = [
        statistics.fmean(float(rng.choice(ratios[chosen])) for chosen in rng.integers(0, len(ratios), len(ratios)))
        for _ in range(RESAMPLES)
    ]
    value = statistics.fmean(_trimmed_mean(one) / _trimmed_mean(other) for one, other in arrays)
    return _estimate(value, means)


def _drawn_mean(values: NDArray[np.float64], rng: np.random.Generator) -> float:
    return _trimmed_mean(rng.choice(values, len(values)))


def _trimmed_mean(values: NDArray[np.float64]) -> float:
    cut = int(len(values) * _CUT_RATIO)
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _estimate(value: float, drawn: Sequence[float]) -> Estimate:
    return Estimate(**asdict(drawn_interval(value, drawn)))
