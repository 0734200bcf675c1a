"""Engines side by side: which of them a turn goes to, and KV that one sends another.

Where a turn goes the controller has said, from what a gateway could know: its ledger, fed by the events and the
samples of every engine. What is moved and cut off is the engines' own.

**Paper**: AgentServeSim §3.3 (Session-Aware Router).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.events import CacheFlushed
from controlplane.core.model.places import place_of
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Replica
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.presets import Preset
from controlplane.core.policies.protocols import Choice, NextTurn, Placed, PlacementPolicy
from controlplane.lab.sim.call import Call
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.kernel import Handle
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.workload.records import Routed


class Site:
    """One boot of an engine: where its events come from, when it is to be advanced, and how it stands."""

    def __init__(self, engine: EngineModel, publisher: Publisher) -> None:
        self.engine = engine
        self.publisher = publisher
        self.name = place_of(publisher.name)
        self.wake: Handle | None = None
        self.draining = False  # it gets no program any more
        self.gone = False  # it died


class Router:
    """Sends calls where a controller has placed their programs (``controlplane.core.scheduling.placing``).

    It is the controller's placement policy, and hands ``policy`` on: so it knows what each answer was to cost.
    """

    def __init__(self, policy: PlacementPolicy[Any]) -> None:
        self._policy = policy
        self._placed: dict[str, Placed] = {}

    def initial(self) -> Any:
        return self._policy.initial()

    def place(
        self, state: Any, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Any, Placed]:
        state, placed = self._policy.place(state, turn, replicas, facts, now_ns)
        self._placed[turn.program.program_id] = placed
        return state, placed

    def route(self, call: Call) -> Placed:
        """Where the call goes: as was said last. Who was let in was placed, and stays there until a new word."""
        placed = self._placed[call.program_id]
        self._placed[call.program_id] = Placed(replica=placed.replica, choice=Choice.STAY)
        return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A program's KV on its way from one engine to another, for the turn that waits for it."""

    call: Call
    source: Site
    target: Site
    blocks: int  # of its own context
    ends_ns: int


class Fleet:
    """The engines of one run. One alone is not routed to, and needs no ``router``.

    ``link_tokens_per_s``: tokens' KV that one sends another in a second, each transfer as if alone; 0: none.
    ``start`` makes an engine that joins; ``places`` are all that there will ever be, counted from 1.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        router: Router | None = None,
        *,
        link_tokens_per_s: float = 0.0,
        start: Callable[[Publisher], EngineModel] | None = None,
        places: Sequence[str] = (),
    ) -> None:
        self.sites = tuple(sites)  # that are there, by name
        self.engines = [site.engine for site in sites]  # that ever were
        self._router = router
        self._by_name = {site.name: site for site in sites}
        self._homes: dict[str, Site] = {}
        self._link_tokens_per_s = link_tokens_per_s
        self._start = start
        self._touched: set[Site] = set()
        self._places = places
        self._preset: Preset | None = None  # what they run; they began with the run's

    # Engines that come and go

    def join(self, number: int) -> Site:
        """An engine of that place begins, with an empty memory."""
        name = self._places[number - 1]
        if self._start is None:
            raise LocalEventError("nothing was said of how an engine starts")
        publisher = Publisher(f"{name}/{len(self.engines) + 1}")  # a boot of its own
        site = Site(self._start(publisher), publisher)
        self.engines.append(site.engine)
        self._by_name[name] = site
        self.sites = tuple(sorted((*self.sites, site), key=lambda each: each.name))
        return site

    def lose(self, number: int) -> Site:
        """The engine there dies: its turns are cut off, and what it held is gone."""
        site = self._by_name.pop(self._places[number - 1])
        site.gone = True
        self.sites = tuple(each for each in self.sites if each is not site)
        return site

    def drain(self, number: int) -> None:
        """The engine there gets no program any more."""
        self._by_name[self._places[number - 1]].draining = True

    def flush(self, number: int, now_ns: int) -> CacheFlushed:
        """The engine there has new weights, by which nothing that it has cached was computed."""
        site = self._by_name[self._places[number - 1]]
        site.engine.flush(now_ns)
        self.touch(site)
        return CacheFlushed(**site.publisher.stamp(now_ns))

    def use(self, preset: Preset, now_ns: int) -> bool:
        """Engines run the policies of the preset in force, as heartbeats tell live ones. True if that is news."""
        former, self._preset = self._preset, preset
        if former is None or former is preset:
            return False
        for site in self.sites:
            site.engine.use(EnginePolicies(priority=preset.priority, memory=preset.memory), now_ns)
            self.touch(site)
        return True

    @property
    def kv_imbalance_ratio(self) -> float:
        """How far apart the fullest and the emptiest engine are, in shares of a pool that turns or pins hold.

        **Paper**: ThunderAgent §3.2 (Figure 2a), which does not say what it counts: this is what vLLM's gauge has.
        """
        caches = [site.engine.cache for site in self.sites]
        used = [1 - (cache.free_blocks + cache.evictable_blocks) / cache.total_blocks for cache in caches]
        return max(used, default=0.0) - min(used, default=0.0)

    # Engines that something was done to: of very many the others need no look

    def touch(self, site: Site) -> None:
        """Something was done to it: it may have to go on."""
        self._touched.add(site)

    def take_touched(self) -> list[Site]:
        """Those that are there, by name."""
        touched, self._touched = self._touched, set()
        return sorted((site for site in touched if not site.gone), key=lambda site: site.name)

    # Turns

    def at(self, program_id: str) -> Site:
        """The engine of the program's last turn."""
        return self._homes.get(program_id, self.sites[0])

    def route(self, session: Session, now_ns: int) -> tuple[Site, Move | None]:
        """The engine for the session's turn, and the transfer that it has to wait for."""
        if self._router is None:
            raise LocalEventError("several engines need a router")
        call = session.call
        placed = self._router.route(call)
        target = self._by_name.get(placed.replica)
        if target is None:  # it died, and where its programs go was not said yet: a proxy takes the least busy one
            target = min(self.sites, key=lambda site: len(site.engine.open_calls()))
            placed = Placed(replica=target.name, choice=Choice.REPREFILL)
        source = self._homes.get(call.program_id, target)
        self._homes[call.program_id] = target
        if session.rewrites:  # what was left behind is no part of the history any more
            for site in self.sites:
                if site is not target:
                    self.touch(site)
                    site.engine.discard(call.program_id, now_ns, keep_tokens=call.reusable_tokens)
        move, tokens = None, 0
        if source.gone:
            placed = replace(placed, choice=Choice.REPREFILL)
        elif source is not target:  # what stays behind is for nobody: a pin ends, and it goes first
            source.engine.release(call.program_id, now_ns)
            source.engine.park(call.program_id, True, now_ns)
            target.engine.park(call.program_id, False, now_ns)
            self.touch(source)
            self.touch(target)
            if placed.choice is Choice.MIGRATE and self._link_tokens_per_s:
                move, tokens = self._begin_move(call, source, target, now_ns)
        session.routed = Routed(
            replica=target.name, choice=placed.choice, cost_ns=placed.cost_ns, moved_tokens=tokens
        )
        return target, move

    def _begin_move(self, call: Call, source: Site, target: Site, now_ns: int) -> tuple[Move | None, int]:
        """Hold the context where it is until it was sent. Returns how many tokens the target lacks of it."""
        block_tokens = source.engine.block_tokens
        base_blocks = call.prefix_blocks(block_tokens)
        node, there = (site.engine.cache.find(call.program_id) for site in (source, target))
        if node is None or node.refs or node.base_blocks != base_blocks:
            return None, 0
        blocks = min(node.blocks, call.reusable_tokens // block_tokens - base_blocks)
        prefix = target.engine.cache.find_prefix(call.prefix_group)
        lacking = max(0, base_blocks - (prefix.blocks if prefix else 0)) + blocks - (there.blocks if there else 0)
        if blocks <= 0 or lacking <= 0:
            return None, 0
        tokens = lacking * block_tokens
        ends_ns = now_ns + ceil(tokens * NANOSECONDS_PER_SECOND / self._link_tokens_per_s)
        source.engine.retain(call.program_id, ends_ns, now_ns)
        return Move(call=call, source=source, target=target, blocks=blocks, ends_ns=ends_ns), tokens

    def land(self, move: Move, now_ns: int) -> None:
        """The context has been sent: it is freed where it was and cached where it is wanted."""
        blocks = 0 if move.source.gone else move.source.engine.discard(move.call.program_id, now_ns)
        move.target.engine.adopt(move.call, min(blocks, move.blocks), now_ns)
        self.touch(move.source)
