"""Verdicts in sum: what a run's decisions cost and gained, and how far that is from hindsight."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.core.model.causes import CLIENT_CAUSES, Cause
from controlplane.core.regret.verdict import Outcome, Verdict

OTHERS = "others"
_MOST_CLIENTS = 64  # names and versions that are told apart: each is a label of metrics


@dataclass(slots=True, kw_only=True)
class Total:
    """Of like verdicts."""

    count: int = 0
    hit_tokens: int = 0
    again_tokens: int = 0
    held_token_s: float = 0.0
    freed_token_s: float = 0.0
    wait_s: float = 0.0
    cost_s: float = 0.0
    gain_s: float = 0.0
    paid_s: float = 0.0
    best_s: float = 0.0

    def add(self, verdict: Verdict) -> None:
        self.count += 1
        self._sides(verdict)

    def join(self, other: "Total") -> None:
        self.count += other.count
        self._sides(other)

    def _sides(self, of: "Verdict | Total") -> None:
        self.hit_tokens += of.hit_tokens
        self.again_tokens += of.again_tokens
        self.held_token_s += of.held_token_s
        self.freed_token_s += of.freed_token_s
        self.wait_s += of.wait_s
        self.cost_s += of.cost_s
        self.gain_s += of.gain_s
        self.paid_s += of.paid_s
        self.best_s += of.best_s

    @property
    def net_s(self) -> float:
        return self.gain_s - self.cost_s

    @property
    def regret_ratio(self) -> float:
        """What gaps cost over what they would have cost in hindsight; 1: nothing could have been better."""
        return self.paid_s / self.best_s if self.best_s > 0 else 1.0


def total_of(verdicts: Iterable[Verdict]) -> Total:
    """All of them in one."""
    total = Total()
    for verdict in verdicts:
        total.add(verdict)
    return total


@dataclass(slots=True, kw_only=True)
class Again:
    """What was computed again for one cause: how often, how many tokens, and an engine's seconds of prefill."""

    misses: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Prefill:
    """Of one client and version: tokens that were computed for its turns, and those of them that were again."""

    computed_tokens: int = 0
    again: dict[Cause, Again] = field(default_factory=dict)

    @property
    def client_tokens(self) -> int:
        """Of those that were computed again, for which the client is the reason."""
        return sum(each.tokens for cause, each in self.again.items() if cause in CLIENT_CAUSES)


@dataclass(slots=True, kw_only=True)
class Sums:
    """All verdicts of a ledger, by kind, outcome and cause; so few that each may be a metric of its own."""

    totals: dict[tuple[str, Outcome, Cause], Total] = field(default_factory=dict)
    all: Total = field(default_factory=Total)
    clients: dict[str, Prefill] = field(default_factory=dict)  # by name and version, as gates read them
    returns: int = 0  # turns that came back to a context
    ends: int = 0  # of programs
    pins_lost: int = 0  # that engines gave up before their time
    unheard: int = 0  # commands about programs of which nothing is known, or nothing any more
    let_through: int = 0  # turns that a gate asked for, and let go at once

    def add(self, verdict: Verdict) -> None:
        key = verdict.kind, verdict.outcome, verdict.cause
        self.totals.setdefault(key, Total()).add(verdict)
        self.all.add(verdict)
        if verdict.again_tokens and verdict.cause:
            again = self.client(verdict.client).again.setdefault(verdict.cause, Again())
            again.misses += 1
            again.tokens += verdict.again_tokens
            again.seconds += verdict.again_s

    def client(self, name: str) -> Prefill:
        """Its sums; those of all others where there are too many."""
        found = self.clients.get(name)
        if found is None:
            name = name if len(self.clients) < _MOST_CLIENTS else OTHERS
            found = self.clients.setdefault(name, Prefill())
        return found

    @property
    def comes_back_ratio(self) -> float:
        """The share of contexts that were asked for again; 1 while nothing is known."""
        seen = self.returns + self.ends
        return self.returns / seen if seen else 1.0
