"""An autoscaler over the simulated engines: how many there are follows one figure of the controller's.

It is Kubernetes' HorizontalPodAutoscaler with one external metric and an average as its target: so many engines are
wanted as the figure has multiples of what one is to carry. Engines take a while to start, and leave when they have
drained; what they cost is counted from the decision to start one until it has left.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from controlplane.core.controller import Controller
from controlplane.core.errors import require
from controlplane.core.held import held_demand
from controlplane.core.types import NANOSECONDS_PER_SECOND, seconds
from controlplane.lab.sim.changes import DIE, DRAIN, JOIN, Change
from controlplane.lab.sim.fleet import Fleet
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.world import World

Signal = Callable[[Controller, int], float]
_SPREAD_S = 60.0  # over which what waits is to be served
_RATE_NS = seconds(60)
_NEVER_NS = seconds(1e9)
_TICK = 3  # in an instant after everything else


def waiting_programs(controller: Controller, now_ns: int) -> float:
    """The queue's length."""
    return float(len(controller.ledger.programs.queue))


def turns_in_flight(controller: Controller, now_ns: int) -> float:
    """Turns that gates hold and engines have: what servers count as their concurrency."""
    return float(len(controller.ledger.gates.held) + len(controller.ledger.turns.running))


def held_tokens(controller: Controller, now_ns: int) -> float:
    """KV that active programs need, and KV x time of the waiting ones spread over a minute (docs/adr/0053)."""
    tokens = controller.pressure.kv_demand_blocks * controller.ledger.estimates.block_tokens
    return tokens + held_demand(controller.ledger, now_ns).kv_token_s / _SPREAD_S


SIGNALS: Mapping[str, Signal] = {
    "queue": waiting_programs,
    "in_flight": turns_in_flight,
    "held": held_tokens,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The autoscaler's rules; defaults are Kubernetes' where it has any."""

    signal: str
    per_engine: float  # of the figure
    least: int = 1
    most: int = 8
    every_s: float = 15.0
    start_s: float = 120.0  # from the decision until an engine serves
    tolerance: float = 0.1  # a figure so near to what the engines carry changes nothing
    step: int = 4  # engines more in a minute, at most
    settle_s: float = 300.0  # fewer only when for so long no look wanted more

    def __post_init__(self) -> None:
        require("per_engine", self.per_engine, low=0, high=float("inf"), ends="()")
        require("least", self.least, low=1, high=self.most)


@dataclass(slots=True, kw_only=True)
class Autoscaler:
    """One run's scaling: what it decided, and the engine-seconds that it used."""

    rules: Scaling
    counts: list[tuple[int, int]] = field(default_factory=list)  # (at_ns, engines wanted), where that changed
    _starting: dict[int, int] = field(default_factory=dict)  # number -> since_ns, of engines that do not serve yet
    _since_ns: dict[int, int] = field(default_factory=dict)  # of all that cost
    _wanted: deque[tuple[int, int]] = field(default_factory=deque)
    _started: deque[int] = field(default_factory=deque)
    _used_ns: int = 0

    def first(self) -> tuple[Change, ...]:
        """Of those that are not there at the beginning: they join when they are wanted, or after any run's end."""
        later = range(self.rules.least + 1, self.rules.most + 1)
        return tuple(Change(kind=JOIN, engine=number, at_ns=_NEVER_NS) for number in later)

    def look(
        self, controller: Controller, serving: Iterable[int], draining: Mapping[int, bool], now_ns: int
    ) -> list[Change]:
        """What is to change. ``draining``: those that take no programs any more, and whether each is idle."""
        serving = sorted(serving)
        for number in serving:
            self._starting.pop(number, None)
            self._since_ns.setdefault(number, 0)
        changes = [Change(kind=DIE, engine=number, at_ns=now_ns) for number, idle in draining.items() if idle]
        for change in changes:
            self._used_ns += now_ns - self._since_ns.pop(change.engine, now_ns)
        there = len(serving) + len(self._starting)
        wanted = self._settled(self._asked(controller, there, now_ns), there, now_ns)
        if not self.counts or self.counts[-1][1] != wanted:
            self.counts.append((now_ns, wanted))
        taken = {*serving, *self._starting, *draining}
        for number in (n for n in range(1, self.rules.most + 1) if n not in taken):
            if there >= wanted:
                break
            there += 1
            self._starting[number] = self._since_ns[number] = now_ns
            self._started.append(now_ns)
            changes.append(Change(kind=JOIN, engine=number, at_ns=now_ns + seconds(self.rules.start_s)))
        for number in reversed(serving[1:]):  # the last first, as of a StatefulSet; one stays
            if there <= wanted:
                break
            there -= 1
            changes.append(Change(kind=DRAIN, engine=number, at_ns=now_ns))
        return changes

    def _asked(self, controller: Controller, there: int, now_ns: int) -> int:
        """By the figure alone."""
        rules = self.rules
        figure = SIGNALS[rules.signal](controller, now_ns)
        if abs(figure / (rules.per_engine * there) - 1) <= rules.tolerance:
            return there
        return max(rules.least, min(rules.most, ceil(figure / rules.per_engine)))

    def _settled(self, asked: int, there: int, now_ns: int) -> int:
        """Bounded in how fast it grows, and shrinking only to the most that was asked for lately."""
        self._wanted.append((now_ns, asked))
        while self._wanted[0][0] < now_ns - seconds(self.rules.settle_s):
            self._wanted.popleft()
        while self._started and self._started[0] <= now_ns - _RATE_NS:
            self._started.popleft()
        if asked > there:
            return min(asked, there + max(0, self.rules.step - len(self._started)))
        return min(there, max(each for _, each in self._wanted))

    def engine_hours(self, end_ns: int) -> float:
        """What was used until ``end_ns``."""
        used_ns = self._used_ns + sum(end_ns - since_ns for since_ns in self._since_ns.values())
        return used_ns / NANOSECONDS_PER_SECOND / 3600


class ScaledWorld(World):
    """A run whose engines are as many as its autoscaler wants."""

    def __init__(
        self,
        kernel: Kernel,
        fleet: Fleet,
        control: Controller,
        sessions: Sequence[Session],
        *,
        autoscaler: Autoscaler,
        **options: Any,
    ) -> None:
        super().__init__(kernel, fleet, control, sessions, **options)
        self._controller = control
        self._autoscaler = autoscaler
        kernel.schedule(0, _TICK, self._scale)

    def _scale(self) -> None:
        now_ns, engines = self._kernel.now_ns, self._fleet.by_number()
        draining = {number: not site.engine.open_calls() for number, site in engines.items() if site.draining}
        serving = [number for number in engines if number not in draining]
        for change in self._autoscaler.look(self._controller, serving, draining, now_ns):
            self._kernel.schedule(change.at_ns, _TICK, self._change, change)
        self._kernel.schedule(now_ns + seconds(self._autoscaler.rules.every_s), _TICK, self._scale)
