"""How sure a ratio is."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its 95% interval."""

    value: float
    low: float
    high: float

    def verdict(self, most: float) -> str:
        if self.high <= most:
            return "met"
        return "missed" if self.low > most else "not told from noise"


def estimate(pairs: Sequence[Sequence[float]]) -> Estimate:
    """The median of all ratios; its interval by resampling pairs of engines, and ratios within a pair."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median([r for pair in rng.choices(pairs, k=len(pairs)) for r in rng.choices(pair, k=len(pair))])
        for _ in range(RESAMPLES)
    )
    low, high = medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]
    return Estimate(value=statistics.median([r for pair in pairs for r in pair]), low=low, high=high)
