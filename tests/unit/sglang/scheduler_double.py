"""Doubles of what the plugin meets in SGLang's scheduler: requests, the scheduler itself, its view of the tree."""

import select
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from sglang_double import ComponentType

from engine_hooks.engine.view import Lock, PoolTokens
from engine_hooks.sglang.engine_view import EngineView

Key = tuple[str, ...]


class RequestDouble:
    """A request with so many tokens of prompt and of output so far."""

    def __init__(
        self, rid: str, prompt: int = 16, *, output: int = 0, most: int = 0, program: str | None = None
    ) -> None:
        self.rid = rid
        self.origin_input_ids = [0] * prompt
        self.output_ids = [0] * output
        self.extend_range = SimpleNamespace(start=0, end=prompt)
        named = {"program_id": rid if program is None else program}
        self.sampling_params = SimpleNamespace(max_new_tokens=most, custom_params=named if program != "" else None)
        self.routing_key = None
        self.prefix_indices: list[int] = []
        self.host_hit_length = 0
        self.finished_reason = None
        self.is_finished = False

    def finished(self) -> bool:
        return self.is_finished


class SchedulerDouble:
    """Sizes and queues."""

    def __init__(self, *, pool_tokens: int = 6400, page_tokens: int = 1, chunk_tokens: int = 1000) -> None:
        self.page_size = page_tokens
        self.max_total_num_tokens = pool_tokens
        self.chunked_prefill_size = chunk_tokens
        self.max_prefill_tokens = 16_384
        self.enable_hierarchical_cache = False
        self.running_batch = SimpleNamespace(reqs=[])
        self.waiting_queue: list[Any] = []
        self.chunked_req: Any = None
        self.server_args = SimpleNamespace()
        self.idle_sleeper = SimpleNamespace(poller=select.poll())
        core = SimpleNamespace(component_evictable_size=lambda component: 0)
        self.tree_cache = SimpleNamespace(tree_core=core, tree_components=(ComponentType.FULL,))


class ViewDouble(EngineView):
    """The real view but for the tree: contexts are so many tokens under a key that begins with their program."""

    def __init__(self, scheduler: SchedulerDouble, *, free_tokens: int = 0, leaf_tokens: int = 1) -> None:
        super().__init__(scheduler)
        self.free_tokens = free_tokens
        self.leaf_tokens = leaf_tokens  # evicted as a whole
        self.cached: dict[str, int] = {}
        self.evicted: list[tuple[str, int]] = []  # program, and the tokens that were asked for
        self.freed_tokens = 0
        self.tree.tree_core.component_evictable_size = self.evictable

    def pool(self) -> PoolTokens:
        total = self.scheduler.max_total_num_tokens
        return PoolTokens(total=total, free=self.free_tokens, evictable=sum(self.cached.values()))

    def evictable(self, component: Any) -> int:
        """What may be evicted of a component; a test may say otherwise."""
        return sum(self.cached.values())

    def free(self, components: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(components, self.free_tokens + self.freed_tokens)

    def late_key(self, request: RequestDouble) -> tuple[Callable[[], Key], int]:
        tokens = len(request.origin_input_ids) + len(request.output_ids)
        return partial(key_of, self.program_of(request), tokens), tokens

    def lock(self, key: Key) -> Lock | None:
        return Lock(key[0], None, len(key)) if self.cached.get(key[0]) else None

    def unlock(self, lock: Lock) -> None:
        """Nothing to do: what is pinned still counts as evictable here."""

    def evict_tail(self, key: Key, most_tokens: int) -> int:
        program = key[0]
        self.evicted.append((program, most_tokens))
        leaves = -(-most_tokens // self.leaf_tokens)
        freed = min(self.cached.get(program, 0), leaves * self.leaf_tokens)
        self.cached[program] = self.cached.get(program, 0) - freed
        self.freed_tokens += freed
        return freed


def key_of(program: str, tokens: int) -> Key:
    """A radix key of so many tokens."""
    return (program,) * tokens
