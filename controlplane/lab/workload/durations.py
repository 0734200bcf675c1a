"""How long a tool takes, as a distribution, and the numbers that draw from it.

A draw is the distribution's quantile at a number in (0, 1) that seed, program and turn decide alone. It does not
depend on who else runs, and under another fit or scale the same call is as lucky as before (common random numbers):
two such runs differ by what was changed, not by chance.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import exp, log
from statistics import NormalDist, fmean, stdev
from typing import Annotated

import msgspec
import numpy as np

MOST_POINTS = 500  # of an empirical distribution
_FARTHEST = 3.0  # deviations of the logarithm: a few calls say nothing of what lies beyond
_LEAST_MS = 1e-3  # a logarithm needs more than 0
_BITS = 52  # of a draw: with one more, the largest would be rounded to 1
_NORMAL = NormalDist()

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Calls = Annotated[int, msgspec.Meta(ge=1)]


class Empirical(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="fit", tag="empirical"
):
    """The calls that were seen, smoothed: between two of them the quantile function is a straight line.

    ``ms`` are points at equal steps of probability, ascending, each in the middle of its step; the outermost hold
    to the ends. So the mean is the points' mean, and no draw lies outside of what was seen.
    """

    calls: Calls
    ms: Annotated[tuple[_Milliseconds, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        for index, (before, after) in enumerate(zip(self.ms, self.ms[1:], strict=False), start=1):
            if after < before:
                raise ValueError(f"expected ms to ascend, got {after:g} after {before:g} at ms[{index}]")

    @property
    def mean_ms(self) -> float:
        return fmean(self.ms)

    def quantile_ms(self, p: float) -> float:
        """The duration that the share ``p`` of calls does not exceed."""
        last = len(self.ms) - 1
        at = min(max(p * len(self.ms) - 0.5, 0.0), float(last))
        low = int(at)
        return self.ms[low] + (self.ms[min(low + 1, last)] - self.ms[low]) * (at - low)


class LogNormal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="fit", tag="log-normal"
):
    """Milliseconds whose logarithm is normal with mean ``mu`` and deviation ``sigma``, cut at 3 deviations."""

    calls: Calls
    mu: Annotated[float, msgspec.Meta(ge=-30, le=30)]
    sigma: Annotated[float, msgspec.Meta(ge=0, le=10)]

    @property
    def mean_ms(self) -> float:
        tail = _NORMAL.cdf(-_FARTHEST)
        within = _NORMAL.cdf(_FARTHEST - self.sigma) - _NORMAL.cdf(-_FARTHEST - self.sigma)
        ends = exp(self.mu + _FARTHEST * self.sigma) + exp(self.mu - _FARTHEST * self.sigma)
        return exp(self.mu + self.sigma**2 / 2) * within + tail * ends

    def quantile_ms(self, p: float) -> float:
        """The duration that the share ``p`` of calls does not exceed."""
        deviations = min(max(_NORMAL.inv_cdf(p), -_FARTHEST), _FARTHEST)
        return exp(self.mu + self.sigma * deviations)


def empirical(durations_ms: Sequence[float]) -> Empirical:
    """At least one duration. More than 500 are told by the means of 500 equal shares, which keeps their mean."""
    ordered = np.sort(np.asarray(durations_ms, dtype=np.float64))
    count = ordered.size
    if count > MOST_POINTS:
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        bounds = np.linspace(0, count, MOST_POINTS + 1)
        ordered = np.maximum.accumulate(
            np.diff(np.interp(bounds, np.arange(count + 1), sums)) * MOST_POINTS / count
        )
    return Empirical(calls=count, ms=tuple(round(float(value), 3) for value in ordered))


def log_normal(durations_ms: Sequence[float]) -> LogNormal:
    """Mean and deviation of the logarithms of at least two durations."""
    logarithms = [log(max(value, _LEAST_MS)) for value in durations_ms]
    return LogNormal(calls=len(logarithms), mu=round(fmean(logarithms), 6), sigma=round(stdev(logarithms), 6))


def uniform(seed: int, program_id: str, turn: int) -> float:
    """A number in (0, 1) for this turn of this program; any seed, program and turn gives another."""
    name = f"{seed}/{turn}/{program_id}".encode(errors="surrogatepass")
    digest = blake2b(name, digest_size=8).digest()
    return ((int.from_bytes(digest) >> (64 - _BITS)) + 0.5) / (1 << _BITS)
