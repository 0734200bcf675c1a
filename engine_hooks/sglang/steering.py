"""What the daemon's policies do in SGLang beyond what every engine has: host memory, and smaller chunks."""

from collections.abc import Callable, Container, Iterable
from typing import Any

from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.steering import Steering
from engine_hooks.sglang.engine_view import EngineView
from engine_hooks.sglang.host_tier import HostTier

_RESERVE_TOKENS = 8  # SGLang's own slack per admission
_HOST_PARTS = 16


class SglangSteering(Steering):
    """``host`` is the host memory behind the pool; None where contexts are not moved to it."""

    _view: EngineView

    def __init__(
        self,
        view: EngineView,
        contexts: Contexts,
        pins: Pins,
        now_ns: Callable[[], int],
        host: HostTier | None,
    ) -> None:
        super().__init__(view, contexts, pins, now_ns)
        self._host = host
        self._host_freed_tokens = 0

    def _evict_tail_of(self, program_id: str, tokens: int) -> int:
        context = self._contexts.find(program_id)
        if context is None or self._host is None:
            return super()._evict_tail_of(program_id, tokens)
        freed_tokens = self._host.evict_tail(program_id, context.key, tokens)
        if freed_tokens < tokens:
            self._contexts.note_gone(program_id)  # from the device
        return freed_tokens

    def evict_parked(self, is_short: Callable[[], bool], busy: Container[str]) -> int:
        """A window's or a state's room is short: the full tokens freed with contexts that nobody waits for.

        Those go as a whole. The engine takes the rest by last use, and of a context what no next turn begins at.
        """
        freed_tokens = 0
        for name, context in list(self._contexts) if self.evicts else ():
            if not is_short():
                break
            if context.on_device and self._contexts.is_parked(name) and name not in busy:
                freed_tokens += self._evict_tail_of(name, context.tokens)
        return freed_tokens

    def order_host(self, needed_tokens: int) -> None:
        """Host memory is about to make room: make the copies that the policy keeps the most recently used.

        The engine's own order there is by last use. Not for every call, since each copy is looked up: again once a
        part of the whole has been given up.
        """
        if self._host is None:
            return
        self._host_freed_tokens += needed_tokens
        if self._host_freed_tokens * _HOST_PARTS < self._host.pool()[0]:
            return
        self._host_freed_tokens = 0
        rank, contexts = self._policies.memory.host_rank, self._contexts
        ranked = [(rank(contexts.label_of(name), contexts.is_parked(name)), context) for name, context in contexts]
        lowest = min((place for place, _ in ranked), default=0)
        for _, context in sorted((each for each in ranked if each[0] > lowest), key=lambda each: each[0]):
            self._host.touch(context.key)

    def chunk(self, budget: Any, admitted: Iterable[Any], wanted_tokens: int) -> int:
        """How much of a prefill that does not fit may run now, in whole blocks; 0: none of it.

        ``admitted``: requests that this pass has scheduled already.
        """
        memory = self._policies.memory
        if not memory.shrinks:
            return 0
        shape = self.shape()
        wanted = self._view.blocks(wanted_tokens)
        room = max(0, self._room_tokens(budget, admitted) // shape.block_tokens)
        fit = memory.fit(wanted, max(0, wanted - room), shape.floor_blocks, (), self._now_ns())
        return fit.chunk_blocks * shape.block_tokens

    def _room_tokens(self, budget: Any, admitted: Iterable[Any]) -> int:
        """Tokens that a parked prefill may hold while every running request can still reach its longest output.

        A prefill in parts cannot be retracted: with less in reserve the engine would abort its last request.
        """
        to_come = sum(
            int(request.sampling_params.max_new_tokens or 0) - len(request.output_ids) + 1
            for request in (*self._view.decoding(), *admitted)
            if not request.finished()
        )
        pool = self._view.pool()
        # Contexts that somebody waits for are not evicted to begin early: that would only be paid for later.
        parked = sum(context.tokens for name, context in self._contexts if self._contexts.is_parked(name))
        taken_tokens = int(budget.current_offset) + 2 * self._view.page_tokens + _RESERVE_TOKENS
        return pool.free + min(pool.evictable, parked) - to_come - taken_tokens
