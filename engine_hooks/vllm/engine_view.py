"""What the plugin reads and does inside vLLM's scheduler. Everything here runs in EngineCore's main thread.

A finished request's blocks keep their hashes and lie in the list of free blocks, in the order in which they will be
given out: those without a hash first, then the least recently used, the ends of contexts before their beginnings. A
hit takes them out of it again. Which blocks of a context it needs depends on the model (``groups``).
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controlplane.core.estimators.moving_average import MovingAverage
from controlplane.core.model.events import PREFILL
from engine_hooks.engine.view import Lock, PoolTokens, View
from engine_hooks.vllm.groups import ContextKey, groups_of
from engine_hooks.vllm.verify import disaggregation

LABELS_VARIABLE = "PENSTOCK_PLUGIN_LABELS"  # where labels are in sampling_params.extra_args: no client knows it
_ADDED = re.compile(r"-[0-9a-f]{8}$")
_PAGE_CHANGES = 8  # by less than an eighth it is not told anew
_UNANSWERED = frozenset({"FINISHED_ABORTED", "FINISHED_IGNORED", "FINISHED_ERROR"})


class EngineView(View):
    """One scheduler of vLLM. ``keys`` gives the keys of all contexts that are known.

    Tokens are a context's, and a block of the pool stands for ``page_tokens`` of them. With several groups these
    are as many as usual contexts have for each block that they take, in all groups together.
    """

    def __init__(self, scheduler: Any, keys: Callable[[], Iterable[ContextKey]] = tuple) -> None:
        self.scheduler = scheduler
        self.groups = groups_of(scheduler)
        self.context_tokens = int(getattr(scheduler, "max_model_len", 0) or 0)
        self.disaggregation = disaggregation(getattr(scheduler, "vllm_config", None))
        self._keys = keys
        self._labels_at = os.environ.get(LABELS_VARIABLE, "")
        self._scheduled: tuple[str, int] = ("", 0)
        self._usual = MovingAverage()  # tokens of contexts
        self._set_page(self.context_tokens or int(scheduler.block_size))

    @property
    def _pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # Sizes and queues

    def pool(self) -> PoolTokens:
        """Free and evictable tokens. Their sum is exact; so are the parts while nothing runs, or is cached twice.

        Both lie in one list. Those with a hash are counted whether anybody uses them or not: how many of a running
        request's blocks are without is a guess.
        """
        pool, page_tokens = self._pool, self.page_tokens
        total, available = pool.num_gpu_blocks - 1, pool.free_block_queue.num_free_blocks
        used_with_hash = max(0, total - available - self._unhashed * len(self.scheduler.running))
        evictable = min(available, max(0, len(pool.cached_block_hash_to_block) - used_with_hash))
        return PoolTokens(total * page_tokens, (available - evictable) * page_tokens, evictable * page_tokens)

    @property
    def pool_tokens(self) -> int:
        """The size of the pool; one block is vLLM's placeholder."""
        return (int(self._pool.num_gpu_blocks) - 1) * self.page_tokens

    def may_run_out(self) -> bool:
        """Whether the next step may find no block left."""
        needed = self.groups.most_blocks(self.chunk_tokens, len(self.scheduler.running))
        return bool(self._pool.free_block_queue.num_free_blocks < needed)

    def note_context(self, tokens: int) -> bool:
        """A turn left a context of so many. True: a block stands for another number of tokens from now on."""
        if tokens:
            self._usual.add(tokens)
        tokens, before = round(self._usual.value) or self.context_tokens, self.page_tokens
        if abs(self.groups.page_of(tokens) - self._page) * _PAGE_CHANGES < self._page:
            return False
        self._set_page(tokens)
        return self.page_tokens != before

    def _set_page(self, tokens: int) -> None:
        self._page, self._unhashed = self.groups.page_of(tokens), self.groups.unhashed_of(tokens)
        self.page_tokens = max(1, round(self._page))

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
        """The key of what a request has computed by now; None if it holds nothing."""
        return self.groups.key_of(request)

    def lock(self, key: ContextKey) -> Lock | None:
        """Count ourselves among the users of what the next hit of ``key`` needs."""
        return self._locked(self.groups.needed(key))

    def lock_held(self, key: ContextKey) -> Lock | None:
        """The same, for a request that holds all of it still: mostly nothing needs to be looked up."""
        return self._locked(self.groups.needed_of_held(key))

    def lock_left_behind(self, key: ContextKey) -> Lock | None:
        """What that hit needs and a request gives back as it goes on; None where it gives nothing back."""
        return self._locked(self.groups.left_behind(key))

    def _locked(self, blocks: Sequence[Any]) -> Lock | None:
        if not blocks:
            return None
        self._pool.touch(blocks)
        return Lock(None, blocks, len(blocks) * self.page_tokens)

    def unlock(self, lock: Lock) -> None:
        """To the recently used end of the list, the context's end first."""
        self._pool.free_blocks(reversed(lock.receipt))

    def locked_tokens(self, lock: Lock) -> int:
        return len(lock.receipt) * self.page_tokens

    def evict_tail(self, key: ContextKey, most_tokens: int) -> int:
        """Drop the last blocks of ``key`` that nobody uses and no other known context begins with."""
        most, dropped = self.blocks(most_tokens), 0
        first = self.groups.own_from(self._shared_hashes(key))
        while dropped < most and (chosen := self.groups.unused(key, first, most - dropped)):
            self._drop(chosen)
            dropped += len(chosen)
            if not self.groups.compute_again:
                break
        return dropped * self.page_tokens

    def _shared_hashes(self, key: ContextKey) -> int:
        """With how many of its first hashes another context begins."""
        shared = 0
        for other in self._keys():
            end = min(len(key.hashes), len(other.hashes))
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

    def handoff_of(self, request: Any) -> str:
        """The prefill request's id, without what vLLM adds behind it to the one that the router gives to both.

        Connectors tell the decode engine the whole of it where the router gives none.
        """
        params = getattr(request, "kv_transfer_params", None) or {}
        if self.disaggregation == PREFILL and (params.get("do_remote_decode") or request.max_tokens == 1):
            return _ADDED.sub("", request.request_id)
        if self.decodes:
            return _ADDED.sub("", str(params.get("remote_request_id") or request.request_id))
        return ""

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
