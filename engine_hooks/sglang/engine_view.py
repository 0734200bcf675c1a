"""What the plugin reads and does inside SGLang's scheduler, with the differences of its versions in one place.

The tree keeps several *components* of a context: full attention's KV, whose pool all tokens here are of, and where
the model has them a sliding window's and states. Everything here runs in the scheduler's thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_hooks.engine.labels import PROGRAM, carried_labels
from engine_hooks.engine.view import Lock, PoolTokens, View
from engine_hooks.sglang.late_key import LateKey
from engine_hooks.sglang.processes import disaggregation, several_workers

_NOWHERE = "2.2.2.2"  # SGLang's FAKE_BOOTSTRAP_HOST
_HANDOFF_QUEUES = (
    "disagg_prefill_bootstrap_queue",
    "disagg_prefill_inflight_queue",
    "disagg_decode_prealloc_queue",
    "disagg_decode_transfer_queue",
)
ALL = 1 << 40  # tokens: more than any pool has
_ASKED = {"FULL": "num_tokens", "SWA": "swa_num_tokens", "MAMBA": "mamba_num"}  # of an eviction, by component


class EngineView(View):
    """One scheduler of SGLang."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._has_http_side = not several_workers(scheduler.server_args)
        self.disaggregation = disaggregation(scheduler.server_args)
        self.page_tokens = int(getattr(scheduler, "page_size", 1) or 1)
        self.context_tokens = int(getattr(scheduler, "max_req_len", 0) or 0)

    @property
    def tree(self) -> Any:
        """The radix tree; the engine may replace it."""
        return self.scheduler.tree_cache

    def pool(self) -> PoolTokens:
        tree, total = self.tree, self.pool_tokens
        if self.decodes:  # mostly without a tree
            free = int(self.scheduler.token_to_kv_pool_allocator.available_size())
        else:
            free = int(tree._component_available_size(tree.tree_components[0]))
        return PoolTokens(total=total, free=free, evictable=int(tree.evictable_size()))

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
        batch; the scheduler holds that one, where it was empty before, only once the plan is made.
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
        end = unfinished.extend_range.end if hasattr(unfinished, "extend_range") else unfinished.extend_end
        left = whole - max(self.cached_tokens(unfinished), int(end))
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

    def lock(self, key: Any) -> Lock | None:
        """Of each component what a next turn needs: the way from the root, a window at its end, a state there."""
        found = self.look_up(key)
        tokens = len(found.device_indices) if hasattr(found, "device_indices") else found.device_prefix_len
        if not tokens:
            return None
        node = found.last_device_node
        return Lock(node, self.tree.inc_lock_ref(node), int(tokens))

    def unlock(self, lock: Lock) -> None:
        self.tree.dec_lock_ref(lock.node, lock.receipt.to_dec_params())

    def evict_tail(self, key: Any, most_tokens: int) -> int:
        """Free, from the end, the leaves of ``key``'s path that nobody else shares or locks, with all they hold.

        Until ``most_tokens`` are freed. Returns how many were: the last leaf goes as a whole, so they may be more.

        Evicting a node that is no evictable leaf panics the core and ends the scheduler: so only nodes that the
        engine itself lists as candidates are evicted. One walk does: a node's parent is listed once it has gone.
        """
        tree, core = self.tree, self.tree.tree_core
        full, tracker = tree.tree_components[0], dict.fromkeys(tree.tree_components, 0)
        core.evict_device_start(full, ALL)
        try:
            last = self._last_node(key)
            while last is not None and tracker[full] < most_tokens:
                handle, progress = tree._evict_device_next_node(full, tracker)
                if handle is None and not progress:
                    break
                if handle != last:
                    continue
                if tree._evict_device_leaf(handle, tracker) is not None:
                    break  # a copy to host memory is due first: that would be demotion
                last = self._last_node(key)
        finally:
            core.evict_device_end(full)
        return int(tracker[full])

    def _last_node(self, key: Any) -> Any:
        """Where ``key``'s path ends on the device; None if it is not there, or goes on for somebody else."""
        matched, node, whole = self.tree.tree_core.match_full_device_prefix(key)
        return node if matched and matched == whole else None

    def asked(self, params: Any) -> dict[Any, int]:
        """What an eviction is asked for, by component."""
        names = ((each, _ASKED.get(each.name)) for each in self.tree.tree_components)
        return {each: count for each, name in names if name and (count := getattr(params, name))}

    def rest(self, params: Any, free: Mapping[Any, int]) -> Any:
        """What is left to evict of ``params`` since so much was ``free`` of each component."""
        now, asked = self.free(free), self.asked(params)
        left = {_ASKED[each.name]: max(0, count - (now[each] - free[each])) for each, count in asked.items()}
        return replace(params, **left)

    def free(self, components: Iterable[Any]) -> dict[Any, int]:
        return {each: int(self.tree._component_available_size(each)) for each in components}

    def missing(self, needed: Any) -> int:
        """``needed``: tokens, or by component what is short of it beside what is free."""
        if not isinstance(needed, dict):
            return super().missing(needed)
        evictable = self.tree.tree_core.component_evictable_size
        return max((count - int(evictable(component)) for component, count in needed.items()), default=0)

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
        return {request.rid for request in (*requests, *self._handed_over())}

    def _handed_over(self) -> Iterable[Any]:
        """The requests whose KV is on its way to another engine or from one, or is yet to be."""
        for name in _HANDOFF_QUEUES if self.disaggregation else ():
            queues = getattr(self.scheduler, name, None) or ()
            for waiting in (queues, getattr(queues, "queue", ()), getattr(queues, "retracted_queue", ())):
                if isinstance(waiting, Sequence):
                    yield from (getattr(each, "req", each) for each in waiting)

    # A request

    def id_of(self, request: Any) -> str:
        rid: str = request.rid
        return rid

    def labels_of(self, request: Any) -> Mapping[str, Any]:
        """Without our part in the HTTP process clients write there unchecked: they may name a program, no more."""
        params = getattr(request.sampling_params, "custom_params", None)
        written = params if isinstance(params, dict) else {}
        if self._has_http_side:
            return written
        carried = carried_labels(request.routing_key or "") or carried_labels(request.rid)
        return carried or {name: written[name] for name in (PROGRAM,) if name in written}

    def session_of(self, request: Any) -> object:
        """The header ``x-smg-routing-key``; and ``session_id`` in the body, which marks SGLang's own sessions."""
        return request.routing_key or getattr(request, "session_id", None)

    def handoff_of(self, request: Any) -> str:
        """The router's number for the turn, which both engines have; a server's own requests go nowhere."""
        room = getattr(request, "bootstrap_room", None) if self.disaggregation else None
        return "" if room is None or request.bootstrap_host == _NOWHERE else str(room)

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
        if hasattr(request, "prefix_indices"):  # 0.5.21
            return len(request.prefix_indices)
        return int(request.prefix_len)

    def loaded_tokens(self, request: Any) -> int:
        """From host memory or a disk; known once its first step is planned."""
        return int(getattr(request, "cached_tokens_host", 0)) + int(getattr(request, "cached_tokens_storage", 0))

    def was_aborted(self, request: Any) -> bool:
        return type(request.finished_reason).__name__ == "FINISH_ABORT"


def extended_tokens(request: Any) -> int:
    """The tokens that the present step prefills for it."""
    if hasattr(request, "extend_range"):  # 0.5.21
        return int(request.extend_range.end - request.extend_range.start)
    return int(request.extend_len)
