"""What an alternative would have changed, with how far the replay of what was decided is from what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.lab.calibrate.observed import StepCosts
from controlplane.lab.whatif.figures import NAMES, Figures, change, moved
from controlplane.lab.whatif.question import Question
from controlplane.lab.workload.interval import Interval
from controlplane.lab.workload.run import RunResult

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's answer. ``change`` is from ``replayed`` to ``alternative``: both are simulated.

    ``expected`` are the same changes as who makes the change will see them, in one run: their intervals are wider.
    ``presets`` are the recorded one and the alternative's; ``programs``: how many whole ones were measured,
    replayed and simulated under the alternative; ``runs`` are one of each, to be shown beside each other.
    """

    question: Question
    presets: tuple[str, str]
    stretch: Mapping[str, float]
    measured: Figures
    replayed: Figures
    alternative: Figures
    programs: tuple[int, int, int]
    change: Mapping[str, Interval]
    expected: Mapping[str, Interval]
    costs: StepCosts
    pool_tokens: int
    engines: int
    notes: tuple[str, ...]
    runs: tuple[RunResult, RunResult, RunResult]

    @property
    def too_few(self) -> str:
        """Why nothing is judged; empty: enough programs were seen whole."""
        whole = self.programs[0]
        return f"too few to judge ({whole} programs)" if whole < FEWEST_TO_JUDGE else ""

    @property
    def predicted(self) -> Figures:
        """What was measured, moved by the change, so that what the replay is off by cancels out."""
        return {name: moved(name, self.measured[name], self.change[name].value) for name in NAMES}

    def bounds(self, name: str) -> tuple[float, float]:
        """Between which values the figure is expected, with 95%; NaN where that is not known."""
        measured, found = self.measured[name], self.expected[name]
        return moved(name, measured, found.low), moved(name, measured, found.high)

    def is_sure(self, name: str) -> bool:
        """Whether the change is more than what differs from run to run and what the replay is off by."""
        return self.expected[name].excludes(0.0)

    @property
    def replay_error(self) -> Figures:
        """Of the replay of what was decided: its change from what was measured."""
        return {name: change(name, self.measured[name], self.replayed[name]) for name in NAMES}

    def to_json(self) -> dict[str, Any]:
        """As ``penstock what-if --json`` prints it."""
        recorded, other = self.presets
        sides = {
            "actual": (self.measured, recorded, self.programs[0]),
            "replayed": (self.replayed, recorded, self.programs[1]),
            "alternative": (self.alternative, other, self.programs[2]),
            "predicted": (self.predicted, other, self.programs[2]),
        }
        return {
            "format": FORMAT,
            "question": self.question.title,
            "stretch": dict(self.stretch),
            **{
                side: {"preset": preset, **_known(found), "programs": n}
                for side, (found, preset, n) in sides.items()
            },
            "replay_error": _known(self.replay_error),
            "change": _intervals(self.change),
            "expected": _intervals(self.expected),
            "calibration": {
                "prefill_error": self.costs.prefill_error_ratio,
                "decode_error": self.costs.decode_error_ratio,
                "turns": self.costs.turns,
                "pool_tokens": self.pool_tokens,
                "engines": self.engines,
            },
            "notes": [*([self.too_few] if self.too_few else []), *self.notes],
        }


def _known(found: Figures) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: value if isfinite(value) else None for name, value in found.items()}


def _intervals(found: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    return {name: _known({"value": at.value, "low": at.low, "high": at.high}) for name, at in found.items()}
