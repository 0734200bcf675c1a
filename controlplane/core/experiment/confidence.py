"""A confidence sequence: an interval that may be looked at after each value, as often as one likes.

**Paper**: Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance
(Gaussian mixture over the scale-invariant likelihood ratio, a mixture SPRT of the t-statistic).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite, sqrt

# Values that the prior of the mean, in standard deviations, is worth. Any is right; few suit large changes.
_PRIOR = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and both ends; infinite ends while there are too few values to say anything."""

    mean: float = 0.0
    low: float = -inf
    high: float = inf
    count: int = 0

    @property
    def is_bounded(self) -> bool:
        return isfinite(self.low) and isfinite(self.high)


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations, value by value (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    def interval(self, alpha: float, before: "Moments | None" = None) -> Interval:
        """What holds the true mean after every value at once, with probability 1 - ``alpha``.

        Exact for independent Gaussian values of any unknown variance; ``before`` are some of the same variance and
        of another mean, of which nothing is asked.
        """
        n = self.count
        if not n:
            return Interval()
        # The mixture of likelihood ratios is sqrt(c / (n + c)) (V / (V - S^2 / (n + c)))^(m / 2), where V and S are
        # the sums of squares and of values around the mean that is asked about, and m counts what V is known from.
        # It is below 1 / alpha for these means.
        known, squares = n, self.squares
        if before is not None and before.count:
            known, squares = n + before.count - 1, squares + before.squares
        most = ((n + _PRIOR) / (_PRIOR * alpha * alpha)) ** (1 / known)
        rest = 1 - most * _PRIOR / (n + _PRIOR)
        half = sqrt(squares / n * (most - 1) / rest) if rest > 0 else inf
        return Interval(mean=self.mean, low=self.mean - half, high=self.mean + half, count=n)


def confidence_interval(values: Iterable[float], alpha: float, before: Iterable[float] = ()) -> Interval:
    """The interval of the mean of ``values`` in the order in which they came; ``before`` as in ``Moments``."""
    return _moments(values).interval(alpha, _moments(before))


def _moments(values: Iterable[float]) -> Moments:
    found = Moments()
    for value in values:
        found.add(value)
    return found
