"""An average in which the past fades."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class MovingAverage:
    """Exponential moving average; the first observation sets it."""

    weight: float = 0.1
    settle: bool = False  # the plain mean until there are 1/weight observations
    value: float = 0.0
    count: int = 0

    def add(self, observed: float) -> None:
        self.count += 1
        if self.count == 1:
            self.value = float(observed)  # a count may be observed, and a snapshot reads it as what it is declared
            return
        weight = max(self.weight, 1 / self.count) if self.settle else self.weight
        self.value += weight * (observed - self.value)
