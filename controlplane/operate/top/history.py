"""The node's last hour as plots and rates, from the samples that its daemon keeps."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.wire.control import Fields

STEP_S = 5  # of a plot's column
PLOTTED = ("limit", "active", "waiting")
_STEP_MS = STEP_S * 1000
_MOST_STEPS = 720  # an hour
_RATES_MS = 60_000
_LONGEST_MS = 15_000  # a sample that comes later than that after the one before is of its own second alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of the last minute. Times are the daemon's clock's."""

    turns_per_s: float
    prompt_per_s: float
    output_per_s: float
    hit_ratio: float | None  # none: no prompt was computed
    anonymous_ratio: float  # of turns whose requests named no program
    refused: int


class History:
    """``add`` takes the samples that are new."""

    def __init__(self) -> None:
        self.last_ms = 0  # of the newest sample, in Unix time
        self._minute: deque[Fields] = deque()
        self._columns: dict[int, list[float]] = {}  # by number of the step: its weight, and each value times that

    def add(self, samples: Iterable[Fields]) -> None:
        for sample in samples:
            if sample.at_ms <= self.last_ms:
                continue
            since_ms = sample.at_ms - self.last_ms
            self._plot(sample, sample.at_ms - (since_ms if since_ms <= _LONGEST_MS else 1000))
            self._minute.append(sample)
            self.last_ms = sample.at_ms
        while self._minute and self._minute[0].at_ms <= self.last_ms - _RATES_MS:
            self._minute.popleft()
        while len(self._columns) > _MOST_STEPS:
            del self._columns[next(iter(self._columns))]

    def _plot(self, sample: Fields, begins_ms: int) -> None:
        for step in range(begins_ms // _STEP_MS, (sample.at_ms - 1) // _STEP_MS + 1):
            weight = min(sample.at_ms, (step + 1) * _STEP_MS) - max(begins_ms, step * _STEP_MS)
            column = self._columns.setdefault(step, [0.0] * (1 + len(PLOTTED)))
            column[0] += weight
            for index, name in enumerate(PLOTTED, start=1):
                column[index] += weight * getattr(sample, name)

    def columns(self, name: str, width: int) -> list[float | None]:
        """The last ``width`` steps, the newest at the end; none where there was no daemon."""
        newest, index = (self.last_ms - 1) // _STEP_MS, 1 + PLOTTED.index(name)
        found = (self._columns.get(step) for step in range(newest - width + 1, newest + 1))
        return [each[index] / each[0] if each else None for each in found]

    def rates(self) -> Rates | None:
        """None: it has not run for a second."""
        samples = self._minute
        span_s = sum(each.span_s for each in samples)
        if not span_s:
            return None
        turns, prompt = sum(each.turns for each in samples), sum(each.prompt_tokens for each in samples)
        return Rates(
            turns_per_s=turns / span_s,
            prompt_per_s=prompt / span_s,
            output_per_s=sum(each.output_tokens for each in samples) / span_s,
            hit_ratio=sum(each.cached_tokens for each in samples) / prompt if prompt else None,
            anonymous_ratio=sum(each.anonymous_turns for each in samples) / turns if turns else 0.0,
            refused=sum(each.refused for each in samples),
        )
