"""When programs arrive: open (a Poisson process, of programs or of bursts) or closed (a fixed number at once)."""

from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeVar

import numpy as np

from controlplane.core.estimators.workload import as_seconds
from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.types import seconds


@dataclass(frozen=True, slots=True)
class Poisson:
    """Open arrivals: ``rate`` programs a second, exponential gaps."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)

    def __str__(self) -> str:
        return f"poisson:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Closed:
    """``n`` programs at once; the next one arrives when one ends, or the next ``n`` when all have ended."""

    n: int
    in_batches: bool = False

    def __str__(self) -> str:
        return f"{'batch' if self.in_batches else 'closed'}:{self.n}"


@dataclass(frozen=True, slots=True)
class Burst:
    """Open arrivals in bursts of ``n`` programs at one instant; ``rate`` programs a second on average."""

    rate: float
    n: int

    def __post_init__(self) -> None:
        _require_rate(self.rate)

    def __str__(self) -> str:
        return f"burst:{self.rate:g}:{self.n}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Open arrivals at times that were seen, ascending, in nanoseconds from the run's beginning."""

    times_ns: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Programs a second on average; 0 where all came at once."""
        lasted_ns = self.times_ns[-1] - self.times_ns[0] if self.times_ns else 0
        return (len(self.times_ns) - 1) / as_seconds(lasted_ns) if lasted_ns else 0.0

    def __str__(self) -> str:
        return "recorded"


def _require_rate(rate: float) -> None:
    require("rate", rate, low=0, high=float("inf"), ends="()")


_Number = TypeVar("_Number", int, float)
Open = Poisson | Burst
Arrival = Open | Closed
_HELP = (
    'expected "poisson:RATE" (programs a second), "burst:RATE:N" (so many a second, N at one instant){more}, '
    '"closed:N" (programs at once, one after another) or "batch:N" (the next N once all have ended)'
)


def parse_arrival(text: str, *, more: str = "") -> Arrival:
    """Read ``poisson:0.2``, ``burst:0.2:10`` or ``closed:8``.

    Raises ``ConfigError``, which also names what ``more`` the caller understands.
    """
    kind, *values = text.split(":")
    try:
        match kind, values:
            case (("closed" | "batch"), [number]):
                return Closed(_above_zero(int(number), text), in_batches=kind == "batch")
            case "poisson", [rate]:
                return Poisson(_above_zero(float(rate), text))
            case "burst", [rate, number]:
                return Burst(_above_zero(float(rate), text), _above_zero(int(number), text))
    except ConfigError:
        raise
    except ValueError:
        pass
    raise ConfigError(f"arrival: {_HELP.format(more=more)}, got {text!r}", field="arrival")


def _above_zero(value: _Number, text: str) -> _Number:
    if not isfinite(value) or value <= 0:
        raise ConfigError(f"arrival: expected RATE > 0 and N >= 1, got {text!r}", field="arrival")
    return value


def at_rate(arrival: Open, rate: float) -> Open:
    """The same kind of arrivals at another rate, to six digits: as it is written."""
    return replace(arrival, rate=float(f"{rate:.6g}"))


def times_ns(arrival: Open | Recorded, n: int, seed: int) -> list[int]:
    """When ``n`` programs arrive, ascending; the first at 0 unless they are recorded."""
    if isinstance(arrival, Recorded):
        return list(arrival.times_ns[:n])
    if isinstance(arrival, Poisson):
        return arrival_times_ns(n, arrival.rate, seed)
    bursts = arrival_times_ns(-(-n // arrival.n), arrival.rate / arrival.n, seed)
    return [at_ns for at_ns in bursts for _ in range(arrival.n)][:n]


def arrival_times_ns(n: int, rate: float, seed: int) -> list[int]:
    """``n`` arrival times of a Poisson process of ``rate`` a second, ascending; the first is at 0.

    The gaps are drawn at rate 1 and stretched: the same seed gives the same pattern at every rate.
    """
    if n <= 0:
        return []
    gaps = np.random.default_rng(seed).exponential(1.0, n - 1) / rate
    return [0, *(seconds(float(t)) for t in np.cumsum(gaps))]
