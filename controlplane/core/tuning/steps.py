"""How far a setting may be changed, how far at once, and what one change was expected to bring."""

from collections.abc import Iterator
from dataclasses import dataclass

GOALS = ("mean_jct_s", "p95_ttft_s", "hit_rate")
SHARES = ("hit_rate",)  # a change of one is a difference, and more is better; that of a time is a ratio less 1
_DIGITS = 4  # of a value that a step leads to: a person may have to copy it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A setting by its dotted key, and the least and greatest value that it may get."""

    key: str
    low: float
    high: float
    is_whole: bool = False  # it takes whole numbers only

    def steps(self, value: float, ratio: float) -> Iterator[float]:
        """One step up and one down, each ``ratio`` of what lies between the bounds, and never beyond them.

        There is none from a value that is outside: somebody wanted it so.
        """
        if not self.low <= value <= self.high:
            return
        width = ratio * (self.high - self.low)
        for wanted in (value + width, value - width):
            reached = self._rounded(min(self.high, max(self.low, wanted)), up=wanted > value)
            if self.low <= reached <= self.high and reached != value:
                yield reached

    def _rounded(self, value: float, *, up: bool) -> float:
        if not self.is_whole:
            return min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}")))
        whole = int(value)
        return whole + 1 if up and whole < value else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What may be changed for what, and how patiently."""

    goal: str = "mean_jct_s"
    bounds: tuple[Bound, ...] = ()
    step_ratio: float = 0.25  # of what lies between a setting's bounds
    least_ratio: float = 0.05  # what a step has to be predicted to gain
    stretch_ns: int  # that is heard before a step is chosen, and before it is judged
    cooldown_ns: int  # after a step was taken back; longer after several in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change. ``predicted``, with its interval, is of the goal.

    ``measured`` and ``replayed`` are the goal's figure before it: as it was, and as a replay of that had it.
    """

    key: str
    before: float
    after: float
    at_ns: int
    predicted: float
    low: float
    high: float
    measured: float
    replayed: float

    @property
    def direction(self) -> tuple[str, bool]:
        """The setting, and whether it was raised."""
        return self.key, self.after > self.before


def gain(goal: str, change: float) -> float:
    """How much better a change of the goal's figure is; negative where it is worse."""
    return change if goal in SHARES else -change
