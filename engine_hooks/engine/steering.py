"""The daemon's two policies inside the engine: in which order turns are scheduled, and whose cache goes first.

**Paper**: MARS §4.3, Priority-Aware Coordinator and Opportunistic Co-Scheduler. The decisions are those of
``controlplane.core``, the same that the simulator runs; here are only the engine's figures and handles. Policies
come with the daemon's heartbeat and hold for its lease: without a daemon the engine works as it always did.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from controlplane import clocks
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.types import MOST_LEASE_S, seconds
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies, loads
from controlplane.core.policies.priority.attained_service import ServiceWindow
from controlplane.core.policies.protocols import EngineShape, QueuedCall, Resident
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.view import View
from engine_hooks.guard import log


class Beat(Protocol):
    """What is read of a heartbeat."""

    @property
    def lease_ttl_ns(self) -> int: ...
    @property
    def engine_policies(self) -> str: ...


class Lease:
    """The policies that the daemon's last heartbeat named, and how long they hold."""

    def __init__(self, now_ns: Callable[[], int] = clocks.awake_ns) -> None:
        self._now_ns = now_ns
        self._received: tuple[str, int] = ("", 0)

    def receive(self, beat: Beat) -> None:
        """A heartbeat of the daemon, in any thread: one assignment, so no lock."""
        self._received = (beat.engine_policies, self._now_ns() + min(beat.lease_ttl_ns, seconds(MOST_LEASE_S)))

    def text(self) -> str:
        """The policies as the daemon wrote them; empty once the lease is over."""
        text, until_ns = self._received
        return text if self._now_ns() <= until_ns else ""


class Steering:
    """Runs the engine policies, in the scheduler's thread."""

    def __init__(
        self,
        view: View,
        contexts: Contexts,
        pins: Pins,
        now_ns: Callable[[], int],
    ) -> None:
        self._view = view
        self._contexts = contexts
        self._pins = pins
        self._now_ns = now_ns
        self._text = ""
        self._use(STOCK)

    @property
    def policies(self) -> EnginePolicies:
        return self._policies

    def follow(self, text: str) -> None:
        """Run these policies from now on; the engine's own if the text is empty."""
        if text == self._text:
            return
        self._text = text
        try:
            self._use(loads(text))
        except RemoteEventError as error:  # of another version: told once, and not tried again
            self._use(STOCK)
            log.warning("penstock: the engine keeps its own policies: %s", error)
        else:
            log.info("penstock: engine policies: %s", text or "the engine's own")

    def _use(self, policies: EnginePolicies) -> None:
        self._policies = policies
        self._served = ServiceWindow(policies.priority.window_ns)

    @property
    def steers(self) -> bool:
        return self.evicts or not isinstance(self._policies.priority, type(STOCK.priority))

    def shape(self) -> EngineShape:
        """The engine's sizes now: operators may change the chunk while it runs."""
        view, page_tokens = self._view, self._view.page_tokens
        return EngineShape(
            pool_blocks=max(1, view.pool_tokens // page_tokens),
            block_tokens=page_tokens,
            chunk_tokens=view.chunk_tokens,
        )

    # The queue

    @property
    def counts_service(self) -> bool:
        return self._policies.priority.window_ns > 0

    def served(self, program_id: str, tokens: int) -> None:
        """The engine prefilled or decoded ``tokens`` for the program."""
        self._served.add(program_id, tokens, self._now_ns())

    def arrived(self, program_id: str) -> None:
        """A request of the program joins the queue, perhaps to overtake: what found no room must be asked again."""
        self._contexts.note_turn(program_id, self._now_ns())
        if not isinstance(self._policies.priority, type(STOCK.priority)):
            self._view.look_again()

    def order(self, waiting_queue: list[Any], queued_ns: Callable[[Any], int]) -> None:
        """Sort the engine's queue in place. ``queued_ns`` tells when a request came."""
        if len(waiting_queue) < 2 or isinstance(self._policies.priority, type(STOCK.priority)):
            return  # the engine's own order
        now_ns = self._now_ns()
        id_of = self._view.id_of
        by_turn = {id_of(request): request for request in waiting_queue}
        if len(by_turn) < len(waiting_queue):
            return  # two requests of one name: nobody may be lost
        calls = [self._call(request, queued_ns(request), now_ns) for request in waiting_queue]
        ordered = self._policies.priority.order(calls, self.shape(), now_ns)
        waiting_queue[:] = [by_turn[call.turn_id] for call in ordered]

    def _call(self, request: Any, queued_ns: int, now_ns: int) -> QueuedCall:
        program_id = self._view.program_of(request)
        output_tokens = self._view.output_tokens(request)
        tokens = self._view.prompt_tokens(request) + output_tokens
        return QueuedCall(
            turn_id=self._view.id_of(request),
            program_id=program_id,
            queued_at_ns=queued_ns,
            footprint_blocks=self._view.blocks(tokens),
            cached_blocks=self._cached_blocks(program_id, tokens),
            program_arrived_at_ns=self._contexts.arrived_ns(program_id),
            served_tokens=self._served.tokens(program_id, now_ns),
            retracted=bool(output_tokens),
            pinned=program_id in self._pins.programs,
            label=self._contexts.label_of(program_id),
        )

    def _cached_blocks(self, program_id: str, most_tokens: int) -> int:
        """Of its program's last context, as far as is remembered: the engine's cache is not searched for it."""
        context = self._contexts.find(program_id) if self._policies.priority.asks_cached else None
        if context is None or not context.on_device:
            return 0
        return min(context.tokens, most_tokens) // self._view.page_tokens

    # The memory

    @property
    def retracts(self) -> bool:
        """Whether the policy chooses which running turn goes for want of room."""
        return self._policies.memory.retracts_by_level

    def victims_last(self, running: list[Any], request_of: Callable[[Any], Any]) -> None:
        """Sort in place what stands for running requests, so that who is to go first for want of room comes last.

        Among equals the engine's order stays. ``request_of`` tells the request of each.
        """
        view, shape, now_ns = self._view, self.shape(), self._now_ns()

        def rank(entry: Any) -> tuple[int, int]:
            request = request_of(entry)
            blocks = view.blocks(view.prompt_tokens(request) + view.output_tokens(request))
            served_tokens = self._served.tokens(view.program_of(request), now_ns)
            return self._policies.priority.level(blocks, served_tokens, shape), blocks

        running.sort(key=rank)

    @property
    def evicts(self) -> bool:
        return not isinstance(self._policies.memory, type(STOCK.memory))

    def evict(self, needed_tokens: int, busy: Iterable[str]) -> int:
        """Evict contexts by name until ``needed_tokens`` are freed; what was freed, the engine sees to the rest.

        ``busy``: programs with a running turn or a pin.
        """
        if not self.evicts:
            return 0
        now_ns, shape, passed = self._now_ns(), self.shape(), frozenset(busy)
        needed_blocks = self._view.blocks(needed_tokens)
        candidates = (
            Resident(
                program_id=name,
                blocks=self._view.blocks(context.tokens),
                last_used_ns=context.used_ns,
                level=self._policies.priority.level(
                    self._view.blocks(context.tokens), self._served.tokens(name, now_ns), shape
                ),
                label=self._contexts.label_of(name),
                parked=self._contexts.is_parked(name),
            )
            for name, context in self._contexts
            if context.on_device and name not in passed
        )
        fit = self._policies.memory.fit(needed_blocks, needed_blocks, needed_blocks, candidates, now_ns)
        freed_tokens = 0
        for name, blocks in fit.victims:
            freed_tokens += self._evict_tail_of(name, blocks * shape.block_tokens)
            if freed_tokens >= needed_tokens:
                break
        return freed_tokens

    def _evict_tail_of(self, program_id: str, tokens: int) -> int:
        context = self._contexts.find(program_id)
        if context is None:
            return 0
        freed_tokens = self._view.evict_tail(context.key, tokens)
        if freed_tokens < tokens:
            self._contexts.forget(program_id)  # the rest is shared, or was gone already
        return freed_tokens
