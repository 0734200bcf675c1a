"""When programs arrive: open (a Poisson process) or closed (a fixed number at once)."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from controlplane.core.errors import ConfigError
from controlplane.core.types import seconds


@dataclass(frozen=True, slots=True)
class Poisson:
    """Open arrivals: ``rate`` programs a second, exponential gaps."""

    rate: float

    def __str__(self) -> str:
        return f"poisson:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Closed:
    """``n`` programs at once; the next one arrives when one ends."""

    n: int

    def __str__(self) -> str:
        return f"closed:{self.n}"


Arrival = Poisson | Closed
_HELP = 'expected "poisson:RATE" (programs a second) or "closed:N" (programs at once)'


def parse_arrival(text: str) -> Arrival:
    """Read ``poisson:0.2`` or ``closed:8``. Raises ``ConfigError``."""
    kind, separator, value = text.partition(":")
    if not separator or kind not in ("poisson", "closed"):
        raise ConfigError(f"arrival: {_HELP}, got {text!r}", field="arrival")
    try:
        if kind == "closed":
            number = int(value)
            if number < 1:
                raise ConfigError(f"arrival: expected closed:N with N >= 1, got {text!r}", field="arrival")
            return Closed(number)
        rate = float(value)
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"arrival: {_HELP}, got {text!r}", field="arrival") from None
    if not isfinite(rate) or rate <= 0:
        raise ConfigError(f"arrival: expected poisson:RATE with RATE > 0, got {text!r}", field="arrival")
    return Poisson(rate)


def arrival_times_ns(n: int, rate: float, seed: int) -> list[int]:
    """``n`` arrival times of a Poisson process of ``rate`` a second, ascending; the first is at 0.

    The gaps are drawn at rate 1 and stretched: the same seed gives the same pattern at every rate.
    """
    if n <= 0:
        return []
    gaps = np.random.default_rng(seed).exponential(1.0, n - 1) / rate
    return [0, *(seconds(float(t)) for t in np.cumsum(gaps))]
