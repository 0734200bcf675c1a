"""What the rule wants of whoever runs it, and what it is answered."""

from dataclasses import dataclass

from controlplane.core.tuning.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Replay what was heard under each of these settings, by itself, in place of what is in force."""

    number: int
    settings: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Put the step in force."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The step stays in force. ``measured`` is its effect at an equal load, in the measure of its prediction."""

    step: Step
    reason: str
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """Put what was in force before the step in force again. ``measured`` is None where nobody could tell."""

    step: Step
    reason: str
    measured: float | None = None


Order = Ask | Try | Keep | TakeBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The goal under one setting: the simulated figure, and the change to it with its 95% interval.

    ``is_advised``: the interval excludes no change, it is for the better, and more than the replay is off by.
    """

    key: str
    value: float
    figure: float
    change: float
    low: float
    high: float
    is_advised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To ``Ask``: the goal as it was measured and as a replay of what was in force has it, and the alternatives.

    ``reason``: why there is no answer; empty: there is one.
    """

    number: int
    measured: float = 0.0
    replayed: float = 0.0
    programs: int = 0
    forecasts: tuple[Forecast, ...] = ()
    reason: str = ""
