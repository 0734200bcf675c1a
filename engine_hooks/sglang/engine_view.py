"""What the plugin reads and does inside SGLang's scheduler, with the differences of its versions in one place.

0.5.17 has a Python ``RadixCache`` with node objects; 0.5.21 a ``UnifiedRadixCache`` over a core with integer
handles. Everything here runs in the scheduler's thread.
"""

from collections.abc import Mapping
from typing import Any

from engine_hooks.engine.view import Lock, PoolTokens, View
from engine_hooks.sglang.late_key import LateKey


class EngineView(View):
    """One scheduler of SGLang."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.page_tokens = int(getattr(scheduler, "page_size", 1) or 1)
        self.context_tokens = int(getattr(scheduler, "max_req_len", 0) or 0)

    @property
    def tree(self) -> Any:
        """The radix tree; the engine may replace it."""
        return self.scheduler.tree_cache

    def pool(self) -> PoolTokens:
        tree = self.tree
        return PoolTokens(
            total=self.pool_tokens,
            free=int(self.scheduler.token_to_kv_pool_allocator.available_size()),
            evictable=int(tree.evictable_size()),
        )

    @property
    def pool_tokens(self) -> int:
        return int(self.scheduler.max_total_num_tokens)

    @property
    def chunk_tokens(self) -> int:
        chunk = int(getattr(self.scheduler, "chunked_prefill_size", 0) or 0)
        return chunk if chunk > 0 else int(self.scheduler.max_prefill_tokens)

    def decoding(self) -> list[Any]:
        """The requests that decode from the next step on.

        While a step is planned, those whose prefill ended with the last one are on their way into the running
        batch; the scheduler holds that one, where it was empty before, only once the plan is made (0.5.21).
        """
        scheduler = self.scheduler
        batches = (scheduler.running_batch, getattr(scheduler, "last_batch", None))
        found = {request.rid: request for batch in batches if batch is not None for request in batch.reqs}
        unfinished = getattr(scheduler, "chunked_req", None)
        if unfinished is not None:
            found.pop(unfinished.rid, None)
        return [request for request in found.values() if not request.finished()]

    def promised_tokens(self) -> int:
        """What the next chunk of the unfinished prefill takes at most, beside a page for each turn that decodes.

        SGLang runs that chunk whether there is room for it or not, and ends where there is none.
        """
        unfinished = getattr(self.scheduler, "chunked_req", None)
        if unfinished is None:
            return 0
        whole = len(unfinished.origin_input_ids) + len(unfinished.output_ids)
        # Its prefix grows a step later, when what was computed enters the tree.
        left = whole - max(len(unfinished.prefix_indices), int(unfinished.extend_range.end))
        return min(self.chunk_tokens, left) + self.page_tokens * (1 + len(self.decoding()))

    @property
    def has_host_tier(self) -> bool:
        """Whether what leaves the device may go to host memory."""
        return bool(getattr(self.scheduler, "enable_hierarchical_cache", False))

    def late_key(self, request: Any) -> tuple[LateKey, int]:
        """What makes the radix key of a request's prompt and output, and its length in tokens."""
        key = LateKey(
            prompt=request.origin_input_ids,
            output=request.output_ids[:],
            page_tokens=self.page_tokens,
            extra_key=request.extra_key,
            cache_salt=getattr(request, "cache_salt", None) or None,  # as the engine's keys have it
        )
        return key, len(key)

    def look_up(self, key: Any) -> Any:
        """What the engine finds of ``key``, wherever; it counts as used now."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.tree.match_prefix(MatchPrefixParams(key=key))

    def match(self, key: Any) -> tuple[Any, int]:
        """The deepest node on the device that ``key`` leads to, and how many tokens lie on the way."""
        found = self.look_up(key)
        if hasattr(found, "device_indices"):
            return found.last_device_node, len(found.device_indices)
        return found.last_device_node, int(found.device_prefix_len)  # 0.5.23

    def lock(self, key: Any) -> Lock | None:
        node, tokens = self.match(key)
        if tokens == 0:
            return None
        return Lock(node, self.tree.inc_lock_ref(node), tokens)

    def unlock(self, lock: Lock) -> None:
        receipt = lock.receipt
        if hasattr(receipt, "to_dec_params"):
            self.tree.dec_lock_ref(lock.node, receipt.to_dec_params())
        else:
            self.tree.dec_lock_ref(lock.node)

    def evict_tail(self, key: Any, most_tokens: int) -> int:
        """Free, from the end, the leaves of ``key``'s path that nobody else shares or locks.

        Until ``most_tokens`` are freed. Returns how many were: the last leaf goes as a whole, so they may be more.

        Evicting a node that is no evictable leaf panics the core and ends the scheduler: so only nodes that the
        engine itself lists as candidates are evicted.
        """
        if hasattr(self.tree, "tree_core"):
            return self._evict_tail_unified(key, most_tokens)
        return self._evict_tail_radix(key, most_tokens)

    def _evict_tail_radix(self, key: Any, most_tokens: int) -> int:
        tree, freed = self.tree, 0
        while freed < most_tokens:
            node, tokens = self.match(key)
            if tokens == 0 or node not in tree.evictable_leaves:
                return freed
            freed += len(node.value)
            tree.token_to_kv_pool_allocator.free(node.value)
            tree._delete_leaf(node)
        return freed

    def _evict_tail_unified(self, key: Any, most_tokens: int) -> int:
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        tree, full = self.tree, ComponentType.FULL
        tracker = dict.fromkeys(tree.tree_components, 0)
        while tracker[full] < most_tokens:
            target, tokens = self.match(key)
            if tokens == 0 or tree.is_root(target) or not self._evict_leaf(target, tracker, full):
                break
        return int(tracker[full])

    def _evict_leaf(self, target: Any, tracker: dict[Any, int], component: Any) -> bool:
        tree = self.tree
        tree.tree_core.evict_device_start(component, 1 << 40)
        try:
            while True:
                node, progress = tree._evict_device_next_node(component, tracker)
                if node is None and not progress:
                    return False
                if node == target:
                    # A backup to host memory may be due first; that is demotion, which is not done here.
                    return tree._evict_device_leaf(node, tracker) is None
        finally:
            tree.tree_core.evict_device_end(component)

    def waiting(self) -> Any:
        return self.scheduler.waiting_queue

    def turns(self) -> tuple[int, int]:
        return len(self.scheduler.running_batch.reqs), len(self.scheduler.waiting_queue)

    def look_again(self) -> None:
        """Once its first waiting request found no room, SGLang looks at no other until a running one ends."""
        self.scheduler.running_batch.batch_is_full = False

    def live_request_ids(self) -> set[str]:
        scheduler = self.scheduler
        requests = list(scheduler.waiting_queue)
        for batch in (
            scheduler.running_batch,
            getattr(scheduler, "last_batch", None),
            getattr(scheduler, "cur_batch", None),
        ):
            if batch is not None:
                requests += batch.reqs
        if scheduler.chunked_req is not None:
            requests.append(scheduler.chunked_req)
        return {request.rid for request in requests}

    # A request

    def id_of(self, request: Any) -> str:
        rid: str = request.rid
        return rid

    def labels_of(self, request: Any) -> Mapping[str, Any]:
        params = getattr(request.sampling_params, "custom_params", None)
        return params if isinstance(params, dict) else {}

    def session_of(self, request: Any) -> object:
        return getattr(request, "routing_key", None)

    def prompt_tokens(self, request: Any) -> int:
        return len(request.origin_input_ids)

    def most_output_tokens(self, request: Any) -> int:
        return int(request.sampling_params.max_new_tokens or 0)

    def output_tokens(self, request: Any) -> int:
        return len(request.output_ids)

    def computed_tokens(self, request: Any) -> int:
        """Those of a request that decodes, or did: its last token is an input of the next step only."""
        return len(request.origin_input_ids) + max(0, len(request.output_ids) - 1)

    def cached_tokens(self, request: Any) -> int:
        if hasattr(request, "prefix_indices"):
            return len(request.prefix_indices)
        return int(request.prefix_len)  # 0.5.23

    def loaded_tokens(self, request: Any) -> int:
        """From host memory or a disk; known once its first step is planned."""
        return int(getattr(request, "cached_tokens_host", 0)) + int(getattr(request, "cached_tokens_storage", 0))

    def was_aborted(self, request: Any) -> bool:
        return type(request.finished_reason).__name__ == "FINISH_ABORT"


def extended_tokens(request: Any) -> int:
    """The tokens that the present step prefills for it."""
    if hasattr(request, "extend_range"):
        return int(request.extend_range.end - request.extend_range.start)
    return int(request.extend_len)  # 0.5.23
