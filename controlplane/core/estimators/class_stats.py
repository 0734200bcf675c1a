"""How long programs live and how fast they grow, by what is known of one when it comes.

A mean over all programs says little where agents are mixed: a chat of four turns and a session of two hundred come
through one gate. What is known at the first turn is who sends it, which agent that is and how long its prompt is,
so a class is a tenant's agent and a half-octave of first prompts. Sizes are in tokens: long first prompts grow by
fewer times their length than short ones do. What few programs of a class tell is shrunk to all of that agent, what
few of those tell to all programs, and what few of those tell to a guess.

**Paper**: MARS §4.2 (EstimateBlocks) looks at the next turn only; the forecast is ours (docs/adr/0005).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from controlplane.core.estimators.survival import Survival, more_turns

PRIOR_TURNS = 10.0  # of a program while none has ended
_PRIOR_GROWTH_TOKENS = 1000.0  # by so much a context grows in a turn while none was seen: so real traces do,
_PRIOR_GROWTH_RATIO = 0.25  # however long their first prompts are; of a short one no more than this share
_PRIOR_PROGRAMS = 3.0  # that are supposed to have been seen before any was
_SHRINK_PROGRAMS = 4.0  # programs of its class that all programs count as
_SHRINK_TURNS = 8.0  # turns, likewise; of all programs the guess counts as so many
_FADE = 0.995  # of the weight of growth and pace, a turn
_MOST_CLASSES = 256  # whoever was heard of longest ago makes room


@dataclass(slots=True)
class DecayedMean:
    """A mean in which the latest count most."""

    count: float = 0.0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count = _FADE * self.count + 1
        self.total = _FADE * self.total + value

    def posterior_mean(self, mean: float, weight: float) -> float:
        """The mean of these and of ``weight`` others, whose mean is known; 0 of none."""
        seen = weight + self.count
        return (weight * mean + self.total) / seen if seen else 0.0


@dataclass(slots=True, kw_only=True)
class ClassStats:
    """The latest programs of one class that ended, and the latest turns of it."""

    turns: Survival = field(default_factory=Survival)
    ended: int = 0
    first_tokens: DecayedMean = field(default_factory=DecayedMean)  # of first prompts
    grown_tokens: DecayedMean = field(default_factory=DecayedMean)  # in each turn
    cycle_ns: DecayedMean = field(default_factory=DecayedMean)  # of each turn with the gap behind it
    # How good the forecast was: of programs that ended, what was expected when they came and what they had.
    expected_tokens: DecayedMean = field(default_factory=DecayedMean)
    actual_tokens: DecayedMean = field(default_factory=DecayedMean)
    missed_tokens: DecayedMean = field(default_factory=DecayedMean)  # the difference, without its sign


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastError:
    """How good the forecast of longest contexts was, over the programs of a class that ended lately."""

    kind: str  # empty: of all programs
    ended: int
    expected_ratio: float  # of what was forecast, in all, to what they came to hold; 1: no bias
    missed_ratio: float  # of the differences, each without its sign, to what they came to hold


@dataclass(kw_only=True)
class ClassRegistry:
    """Programs by class; under the empty name all of them together."""

    classes: dict[str, ClassStats] = field(default_factory=lambda: {"": ClassStats()})

    def __post_init__(self) -> None:
        # What was answered since something was learned last: a decision asks the same several times.
        self._turns_left: dict[tuple[str, int], float] = {}
        self._cycle_ns: dict[str, float] = {}

    def of(self, kind: str) -> list[ClassStats]:
        """All programs, then those of that agent and of that class, where there are any."""
        return [self.classes[name] for name in _levels(kind) if name in self.classes]

    def learn(self, kind: str) -> list[ClassStats]:
        """``of``, for writing: what is not there is made."""
        self._forget_answers()
        found = [self.classes[""]]
        for name in _levels(kind)[1:]:
            found.append(self.classes.pop(name) if name in self.classes else ClassStats())
            self.classes[name] = found[-1]  # heard of last
        while len(self.classes) > _MOST_CLASSES:
            del self.classes[next(name for name in self.classes if name)]
        return found

    def began(self, kind: str, tokens: int) -> None:
        for stats in self.learn(kind):
            stats.first_tokens.add(tokens)

    def first_tokens(self, tenant: str, agent: str) -> float:
        """How long the first prompts of that agent are; 0 while no program's is known."""
        known = (self.classes[name] for name in ("", f"{tenant}/{agent}") if name in self.classes)
        return _shrunk(stats.first_tokens for stats in known)

    def forecast_errors(self) -> list[ForecastError]:
        """Of all programs first, then of each class, the one with the most programs that ended in front."""
        known = [(kind, stats) for kind, stats in self.classes.items() if stats.actual_tokens.total > 0]
        known.sort(key=lambda found: (found[0] != "", -found[1].ended, found[0]))
        return [
            ForecastError(
                kind=kind,
                ended=stats.ended,
                expected_ratio=stats.expected_tokens.total / stats.actual_tokens.total,
                missed_ratio=stats.missed_tokens.total / stats.actual_tokens.total,
            )
            for kind, stats in known
        ]

    def grew(self, kind: str, tokens: float) -> None:
        for stats in self.learn(kind):
            stats.grown_tokens.add(tokens)

    def cycled(self, kind: str, cycle_ns: int) -> None:
        for stats in self.learn(kind):
            stats.cycle_ns.add(cycle_ns)

    def observe_survival(self, kind: str, turns: int) -> None:
        for stats in self.learn(kind):
            stats.turns.observe_survival(turns)

    def ended(self, kind: str, turns: int, *, expected_tokens: float, actual_tokens: float) -> None:
        """A program ended; what its longest context was expected to be when it came (0: nothing was)."""
        for stats in self.learn(kind):
            stats.ended += 1
            stats.turns.ended(turns)
            if expected_tokens > 0:
                stats.expected_tokens.add(expected_tokens)
                stats.actual_tokens.add(actual_tokens)
                stats.missed_tokens.add(abs(expected_tokens - actual_tokens))

    def undo_end(self, kind: str, turns: int) -> None:
        """It had not."""
        self._forget_answers()
        for stats in self.of(kind):
            stats.ended -= 1
            stats.turns.undo_end(turns)

    def turns_left(self, kind: str, reached: int) -> float:
        """How many turns a program is expected to have left that has had ``reached``."""
        if (known := self._turns_left.get((kind, reached))) is not None:
            return known
        left = max(PRIOR_TURNS - reached, more_turns(reached))
        weight = _PRIOR_PROGRAMS
        for stats in self.of(kind):
            seen, turns = stats.turns.left(reached)
            left = (weight * left + seen * turns) / (weight + seen)
            weight = _SHRINK_PROGRAMS
        self._turns_left[kind, reached] = left
        return left

    def tokens_a_turn(self, kind: str, first_tokens: float) -> float:
        """By how much the context of a program whose first prompt is so long grows in a turn."""
        grown = (stats.grown_tokens for stats in self.of(kind))
        guess = min(_PRIOR_GROWTH_TOKENS, _PRIOR_GROWTH_RATIO * first_tokens)
        return _shrunk(grown, guess, _SHRINK_TURNS)

    def cycle_ns(self, kind: str) -> float:
        """What a turn and the gap behind it take; 0 while nothing is known."""
        if kind not in self._cycle_ns:
            self._cycle_ns[kind] = _shrunk(stats.cycle_ns for stats in self.of(kind))
        return self._cycle_ns[kind]

    def _forget_answers(self) -> None:
        self._turns_left.clear()
        self._cycle_ns.clear()


def _shrunk(means: Iterable[DecayedMean], mean: float = 0.0, weight: float = 0.0) -> float:
    """From the most general to the most special, each shrunk to the one before, the first to ``mean``."""
    for decayed in means:
        mean = decayed.posterior_mean(mean, weight)
        weight = _SHRINK_TURNS
    return mean


@lru_cache(maxsize=4096)
def _levels(kind: str) -> tuple[str, ...]:
    """From the most general to the most special: all programs, those of its agent if that is known, its class."""
    agent = kind.rpartition("/")[0]
    return ("", agent, kind) if agent.strip("/") else ("", kind) if kind else ("",)
