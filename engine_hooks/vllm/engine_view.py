"""What the plugin reads and does inside vLLM's scheduler. Everything here runs in EngineCore's main thread.

A finished request's blocks keep their hashes and lie in the list of free blocks, in the order in which they will be
given out: those without a hash first, then the least recently used, the ends of contexts before their beginnings. A
hit takes them out of it again. One KV cache group is assumed (``verify.no_pins``).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_hooks.engine.view import Lock, PoolTokens, View

LABELS_VARIABLE = "PENSTOCK_PLUGIN_LABELS"  # where labels are in sampling_params.extra_args: no client knows it
_GROUP = 0
_UNANSWERED = frozenset({"FINISHED_ABORTED", "FINISHED_IGNORED", "FINISHED_ERROR"})


@dataclass(frozen=True, slots=True, eq=False)
class ContextKey:
    """The hashes of a context's whole blocks, each of which stands for all before it too; and where they lay."""

    hashes: Sequence[Any]
    blocks: Sequence[Any]
    block_tokens: int

    def __len__(self) -> int:
        return len(self.hashes) * self.block_tokens


class EngineView(View):
    """One scheduler of vLLM. ``keys`` gives the keys of all contexts that are known."""

    def __init__(self, scheduler: Any, keys: Callable[[], Iterable[ContextKey]] = tuple) -> None:
        self.scheduler = scheduler
        self.page_tokens = int(scheduler.block_size)
        self.context_tokens = int(getattr(scheduler, "max_model_len", 0) or 0)
        self._keys = keys
        self._labels_at = os.environ.get(LABELS_VARIABLE, "")
        self._scheduled: tuple[str, int] = ("", 0)

    @property
    def _pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # Sizes and queues

    def pool(self) -> PoolTokens:
        """Free and evictable tokens. Their sum is exact, and so are the parts while nothing runs.

        Both lie in one list. Those with a hash are counted whether anybody uses them or not: of a running request's
        blocks one is taken to be without.
        """
        pool, page_tokens = self._pool, self.page_tokens
        total, available = pool.num_gpu_blocks - 1, pool.free_block_queue.num_free_blocks
        used_with_hash = max(0, total - available - len(self.scheduler.running))
        evictable = min(available, max(0, len(pool.cached_block_hash_to_block) - used_with_hash))
        return PoolTokens(total * page_tokens, (available - evictable) * page_tokens, evictable * page_tokens)

    @property
    def pool_tokens(self) -> int:
        """The size of the pool; one block is vLLM's placeholder."""
        return (int(self._pool.num_gpu_blocks) - 1) * self.page_tokens

    @property
    def chunk_tokens(self) -> int:
        return int(self.scheduler.max_num_scheduled_tokens)

    def waiting(self) -> Any:
        return self.scheduler.waiting

    def turns(self) -> tuple[int, int]:
        running, waiting = self.scheduler.get_request_counts()
        return int(running), int(waiting)

    def live_request_ids(self) -> set[str]:
        return set(self.scheduler.requests)

    # Contexts

    def key_of(self, request: Any) -> ContextKey | None:
        """The key of what a request has computed by now, in whole blocks; None if it holds nothing."""
        held = self.scheduler.kv_cache_manager.get_blocks(request.request_id).blocks[_GROUP]
        count = min(len(request.block_hashes), len(held), request.num_computed_tokens // self.page_tokens)
        if count == 0:
            return None
        return ContextKey(request.block_hashes[:count], tuple(held[:count]), self.page_tokens)

    def lock(self, key: ContextKey) -> Lock | None:
        """Count ourselves among the users of what is cached of ``key``."""
        return self._locked(self._cached(key))

    def lock_held(self, key: ContextKey) -> Lock | None:
        """The same, for a request that holds all of it still: nothing needs to be looked up."""
        return self._locked(key.blocks)

    def _locked(self, blocks: Sequence[Any]) -> Lock | None:
        if not blocks:
            return None
        self._pool.touch(blocks)
        return Lock(None, blocks, len(blocks) * self.page_tokens)

    def unlock(self, lock: Lock) -> None:
        """To the recently used end of the list, the context's end first."""
        self._pool.free_blocks(reversed(lock.receipt))

    def evict_tail(self, key: ContextKey, most_tokens: int) -> int:
        """Drop the last blocks of ``key`` that nobody uses and no other known context begins with."""
        blocks = self._cached(key)
        chosen: list[Any] = []
        most = self.blocks(most_tokens)
        for index in range(len(blocks) - 1, self._shared_blocks(key, len(blocks)) - 1, -1):
            if len(chosen) >= most or blocks[index].ref_cnt:
                break
            chosen.append(blocks[index])
        if chosen:
            self._drop(chosen)
        return len(chosen) * self.page_tokens

    def _cached(self, key: ContextKey) -> list[Any]:
        """The blocks of the beginning of ``key`` that is cached.

        A block that still has its hash is taken as it is; to look one up costs ten times as much.
        """
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        pool, found = self._pool, []
        for block, block_hash in zip(key.blocks, key.hashes, strict=True):
            if block.block_hash == make_block_hash_with_group_id(block_hash, _GROUP):
                found.append(block)
                continue
            others = pool.get_cached_block(block_hash, [_GROUP])
            if not others:
                break
            found.append(others[0])
        return found

    def _shared_blocks(self, key: ContextKey, most: int) -> int:
        """With how many of its first blocks another context begins, at most ``most``."""
        shared = 0
        for other in self._keys():
            end = min(most, len(other.hashes))
            while other is not key and shared < end and other.hashes[shared] == key.hashes[shared]:
                shared = _alike(key.hashes, other.hashes, shared, end)
        return shared

    def _drop(self, blocks: Sequence[Any]) -> None:
        """Forget what is in them, and give them out before anything that is cached."""
        pool = self._pool
        queue = pool.free_block_queue
        pool.evict_blocks({block.block_id for block in blocks})
        for block in reversed(blocks):  # one by one: whatever fails, none is out of the list
            queue.remove(block)
            queue.prepend_n([block])

    # A request

    def id_of(self, request: Any) -> str:
        request_id: str = request.request_id
        return request_id

    def labels_of(self, request: Any) -> Mapping[str, Any]:
        extra = getattr(request.sampling_params, "extra_args", None)  # of a pooling request: None has none
        labels = extra.get(self._labels_at) if isinstance(extra, dict) else None
        return labels if isinstance(labels, dict) else {}

    def session_of(self, request: Any) -> object:
        return getattr(request, "session_id", None)

    def prompt_tokens(self, request: Any) -> int:
        return int(request.num_prompt_tokens)

    def most_output_tokens(self, request: Any) -> int:
        return int(request.max_tokens or 0)

    def output_tokens(self, request: Any) -> int:
        return int(request.num_output_tokens)

    def note_cached(self, request_id: str, tokens: int) -> None:
        """It is scheduled, first or after a preemption, and so many of its tokens were found computed."""
        self._scheduled = (request_id, tokens)

    def cached_tokens(self, request: Any) -> int:
        request_id, tokens = self._scheduled
        return tokens if request_id == request.request_id else 0

    def was_aborted(self, request: Any) -> bool:
        return request.status.name in _UNANSWERED


def _alike(mine: Sequence[Any], other: Sequence[Any], known: int, end: int) -> int:
    """How many hashes are the same, at least ``known`` + 1 and at most ``end``: a hash stands for all before it."""
    low, high = known + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        if mine[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
