"""Engines side by side: which of them a turn goes to, and KV that one sends another.

A thin shell around a placement policy. The policy is told what a gateway could know: the controller's ledger, fed
by the events and the samples of every engine. What is moved and cut off is the engines' own.

**Paper**: AgentServeSim §3.3 (Session-Aware Router).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from controlplane.core.errors import LocalEventError
from controlplane.core.events import place_of
from controlplane.core.ledger import Ledger
from controlplane.core.outlook import engines
from controlplane.core.policies import Choice, NextTurn, Placed, PlacementPolicy
from controlplane.core.types import NANOSECONDS_PER_SECOND, Program
from controlplane.lab.sim.call import Call
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.kernel import Handle
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.records import Routed


class Site:
    """One engine in the world, where its events come from, and when it is to be advanced."""

    __slots__ = ("engine", "name", "publisher", "wake")

    def __init__(self, engine: EngineModel, publisher: Publisher) -> None:
        self.engine = engine
        self.publisher = publisher
        self.name = place_of(publisher.name)
        self.wake: Handle | None = None


class Routing(Protocol):
    """What says where a call goes."""

    def place(self, call: Call, now_ns: int) -> Placed: ...


class Router:
    """Asks a placement policy, with what the ledger knows of the program and of the engines."""

    def __init__(self, policy: PlacementPolicy[Any], ledger: Ledger) -> None:
        self._policy = policy
        self._ledger = ledger
        self._state = policy.initial()

    def place(self, call: Call, now_ns: int) -> Placed:
        """Where the call goes. Every engine was heard before the first call."""
        ledger = self._ledger
        estimates = ledger.estimates
        turn = NextTurn(
            program=ledger.programs.by_name.get(call.program_id) or Program(program_id=call.program_id),
            blocks=estimates.blocks(call.prompt_tokens + estimates.output.value),
            reusable_tokens=call.reusable_tokens,
        )
        self._state, placed = self._policy.place(self._state, turn, engines(ledger), estimates, now_ns)
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
    """

    def __init__(
        self, sites: Sequence[Site], router: Routing | None = None, *, link_tokens_per_s: float = 0.0
    ) -> None:
        self.sites = tuple(sites)
        self._router = router
        self._by_name = {site.name: site for site in sites}
        self._homes: dict[str, Site] = {}
        self._link_tokens_per_s = link_tokens_per_s

    def at(self, program_id: str) -> Site:
        """The engine of the program's last turn."""
        return self._homes.get(program_id, self.sites[0])

    def route(self, session: Session, now_ns: int) -> tuple[Site, Move | None]:
        """The engine for the session's turn, and the transfer that it has to wait for."""
        if self._router is None:
            raise LocalEventError("several engines need a router")
        call = session.call
        placed = self._router.place(call, now_ns)
        target = self._by_name[placed.replica]
        source = self._homes.get(call.program_id, target)
        self._homes[call.program_id] = target
        if session.rewrites:  # what was left behind is no part of the history any more
            for site in self.sites:
                if site is not target:
                    site.engine.discard(call.program_id, now_ns, keep_tokens=call.reusable_tokens)
        move, tokens = None, 0
        if source is not target:  # what stays behind is for nobody: a pin ends, and it goes first
            source.engine.release(call.program_id, now_ns)
            source.engine.park(call.program_id, True, now_ns)
            target.engine.park(call.program_id, False, now_ns)
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

    @staticmethod
    def land(move: Move, now_ns: int) -> None:
        """The context has been sent: it is freed where it was and cached where it is wanted."""
        blocks = move.source.engine.discard(move.call.program_id, now_ns)
        move.target.engine.adopt(move.call, min(blocks, move.blocks), now_ns)
