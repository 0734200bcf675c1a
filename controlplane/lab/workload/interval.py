"""How sure a figure is: 95% intervals over a few independent repetitions.

Seeds are few, three to ten: Student's t then, which widens as they get fewer. A bootstrap of so few values is too
narrow, as it cannot draw what lies beyond them: of three seeds there are ten different resamples. It has its place
where a run's programs are at hand to draw from, as in ``bench/ab``.

No interval reaches where its figure cannot be. Of a ratio it is made on logarithms, where the ends are above 0
(Bland and Altman, "The use of transformation when comparing two means", BMJ 312, 1996). A bootstrap's percentiles
stay in the range of what is drawn (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 13). That of
a mean is symmetric, and is cut at the ends of the range (``Interval.within``).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, isnan, log, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike

# 97.5% quantiles of Student's t by degrees of freedom, and that of the normal distribution.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z = 1.959964
_MOST_LOG = 700.0  # whose exponential is still a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its 95% interval; both ends are NaN where it was measured once."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]" if self.is_known else f"{self.value:.2f}"

    @property
    def is_known(self) -> bool:
        """Whether there was more than one measurement."""
        return not isnan(self.low)

    def within(self, low: float, high: float) -> "Interval":
        """Cut at what is possible; as it is where it is not known."""
        if not self.is_known:
            return self
        return Interval(value=self.value, low=max(self.low, low), high=min(self.high, high))

    @property
    def without_ends(self) -> "Interval":
        """The figure alone, where too little was seen to say how sure it is."""
        return Interval(value=self.value, low=nan, high=nan)

    def excludes(self, value: float) -> bool:
        """Whether the interval says that it is not this value; a single measurement never does."""
        return self.is_known and not self.low <= value <= self.high


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t; beyond the table its expansion around the normal one, to 0.001.

    ``freedom``: degrees of freedom, at least 1.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, freedom
    first = (z**3 + z) / (4 * n)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return z + first + second + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean and Student's t interval of ``values``, which are independent and of a like spread. Not empty."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Interval(value=mean, low=nan, high=nan)
    half = t_quantile(count - 1) * statistics.stdev(values) / sqrt(count)
    return Interval(value=mean, low=mean - half, high=mean + half)


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """How many times the second of a pair the first is: the geometric mean, and Student's t on the logarithms.

    A pair is two systems under one seed, so that what the seed does to both cancels out. On logarithms A over B and
    B over A say the same. Pairs with a value that is not above 0 are left out; None where no pair is left.
    """
    logs = [log(one) - log(other) for one, other in pairs if one > 0 and other > 0]
    if not logs:
        return None
    found = mean_interval(logs)
    return Interval(value=exp(found.value), low=exp(found.low), high=exp(min(found.high, _MOST_LOG)))


def drawn_interval(value: float, drawn: ArrayLike) -> Interval:
    """Of a bootstrap: ``value`` as measured, and the middle 95% of what was drawn.

    Draws that are no number count for nothing.
    """
    known = [each for each in np.asarray(drawn, dtype=np.float64).ravel().tolist() if isfinite(each)]
    low, high = np.percentile(known, (2.5, 97.5)) if known else (nan, nan)
    return Interval(value=value, low=float(low), high=float(high))
