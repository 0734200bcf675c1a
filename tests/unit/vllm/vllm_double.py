"""Doubles of what the plugin meets in vLLM: its modules, its pool of blocks, a scheduler and requests."""

from collections import deque
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.package_double import PackageDouble

from engine_hooks.vllm.engine_view import LABELS_VARIABLE
from engine_hooks.vllm.targets import TARGETS

BLOCK_TOKENS, WINDOW_TOKENS = 4, 10
LABELS = "made-up-anew"  # where the server's HTTP side puts its labels


class VllmDouble(PackageDouble):
    """vLLM and FastAPI with every target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "0.32.0") -> None:
        super().__init__(monkeypatch, TARGETS)
        monkeypatch.setenv(LABELS_VARIABLE, LABELS)
        self.set("vllm.__version__", version)
        self.set(
            "vllm.v1.core.kv_cache_utils.make_block_hash_with_group_id", lambda block_hash, group_id: block_hash
        )


class BlockDouble:
    """vLLM's ``KVCacheBlock``."""

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.is_null = False
        self.block_hash: str | None = None


class QueueDouble:
    """vLLM's ``FreeKVCacheBlockQueue``: the first is given out first."""

    def __init__(self, blocks: Iterable[BlockDouble]) -> None:
        self.blocks = list(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.blocks)

    def remove(self, block: BlockDouble) -> None:
        self.blocks.remove(block)

    def prepend_n(self, blocks: list[BlockDouble]) -> None:
        self.blocks[:0] = blocks


class PoolDouble:
    """vLLM's ``BlockPool``: it counts references as that one does."""

    def __init__(self, blocks: int) -> None:
        self.enable_caching = True
        self.hash_block_size = BLOCK_TOKENS
        self.num_gpu_blocks = blocks + 1
        self.blocks = [BlockDouble(number) for number in range(blocks + 1)]
        self.free_block_queue = QueueDouble(self.blocks[1:])
        self.cached_block_hash_to_block: dict[str, BlockDouble] = {}

    def get_cached_block(self, block_hash: str, kv_cache_group_ids: list[int]) -> list[BlockDouble] | None:
        assert kv_cache_group_ids == [0]
        found = self.cached_block_hash_to_block.get(block_hash)
        return None if found is None else [found]

    def touch(self, blocks: Sequence[BlockDouble]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[BlockDouble]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0, "given back twice"
            if block.ref_cnt == 0:
                self.free_block_queue.blocks.append(block)

    def evict_blocks(self, block_ids: set[int]) -> None:
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.block_hash is not None:
                self.cached_block_hash_to_block.pop(block.block_hash, None)
            block.block_hash = None

    def get_new_blocks(self, num_blocks: int) -> list[BlockDouble]:
        given = self.free_block_queue.blocks[:num_blocks]
        del self.free_block_queue.blocks[:num_blocks]
        self.evict_blocks({block.block_id for block in given})
        for block in given:
            block.ref_cnt = 1
        return given


class FullAttentionManager:
    """vLLM's, of a group whose every block stays; the plugin knows it by its name."""

    block_size = BLOCK_TOKENS

    def __init__(self, **more: Any) -> None:
        vars(self).update(more)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0


class SlidingWindowManager(FullAttentionManager):
    """vLLM's, of a group that gives back what is out of its window."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - WINDOW_TOKENS + 1)


class ManagerDouble:
    """vLLM's ``KVCacheManager``."""

    def __init__(self, blocks: int) -> None:
        self.block_pool = PoolDouble(blocks)
        self.coordinator = SimpleNamespace()
        self.held: dict[str, list[BlockDouble]] = {}

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=(self.held.get(request_id, []),))

    def allocate_slots(self, request: "RequestDouble", blocks: int) -> list[BlockDouble] | None:
        if self.block_pool.free_block_queue.num_free_blocks < blocks:
            return None
        given = self.block_pool.get_new_blocks(blocks)
        self.held.setdefault(request.request_id, []).extend(given)
        return given


class RequestDouble:
    """A request whose prompt is told by words, one a block; its blocks' hashes stand for all words so far."""

    def __init__(self, request_id: str, words: str = "", *, program: str | None = None, output: int = 0) -> None:
        blocks = words.split()
        self.request_id = request_id
        self.block_hashes = [" ".join(blocks[: count + 1]) for count in range(len(blocks))]
        self.num_prompt_tokens = len(blocks) * BLOCK_TOKENS
        self.num_computed_tokens = self.num_prompt_tokens
        self.num_output_tokens = output
        self.max_tokens = 8
        labels = {LABELS: {"program_id": request_id if program is None else program}}
        self.sampling_params = SimpleNamespace(extra_args=labels if program != "" else None)
        self.session_id: str | None = None
        self.status = SimpleNamespace(name="WAITING")


class SchedulerDouble:
    """vLLM's ``Scheduler``, which notes its calls; its methods are those that the plugin overrides."""

    def __init__(
        self,
        blocks: int = 16,
        managers: Sequence[Any] = (FullAttentionManager(),),
        caching: bool = True,
        elastic: bool = False,
    ) -> None:
        self.calls: list[Any] = []
        self.paused = False
        self.lists_resumed_as_new = False  # as the second of its model runners has it
        self.block_size = BLOCK_TOKENS
        self.max_num_scheduled_tokens = 1024
        self.kv_cache_manager = ManagerDouble(blocks)
        self.pool.enable_caching = caching
        self.kv_cache_manager.coordinator.single_type_managers = managers
        self.vllm_config = SimpleNamespace(
            kv_transfer_config=None,
            parallel_config=SimpleNamespace(enable_elastic_ep=elastic, data_parallel_rank_local=1),
        )
        self.waiting: deque[Any] = deque()
        self.running: list[Any] = []
        self.requests: dict[str, Any] = {}

    @property
    def pool(self) -> PoolDouble:
        return self.kv_cache_manager.block_pool

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def add_request(self, request: Any) -> None:
        self.calls.append("add_request")
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def has_requests(self) -> bool:
        return bool(self.requests) and not self.paused

    def schedule(self) -> Any:
        """Everybody who waits runs, with no token cached; all of their prompt and output is computed at once."""
        new = [
            SimpleNamespace(req_id=each.request_id, num_computed_tokens=0)
            for each in self.waiting
            if each.status.name != "PREEMPTED" or self.lists_resumed_as_new
        ]
        for request in self.waiting:
            request.status.name = "RUNNING"
            request.num_computed_tokens = request.num_prompt_tokens + request.num_output_tokens
        self.running += self.waiting
        self.waiting.clear()
        counts = {each.request_id: each.num_computed_tokens for each in self.running}
        return SimpleNamespace(scheduled_new_reqs=new, num_scheduled_tokens=counts)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        for request_id in scheduler_output.num_scheduled_tokens:
            self.requests[request_id].num_output_tokens += 1
        return model_runner_output

    def _free_request(self, request: Any) -> Any:
        blocks = self.kv_cache_manager.held.pop(request.request_id, [])
        self.pool.free_blocks(reversed(blocks))
        del self.requests[request.request_id]
        if request in self.running:
            self.running.remove(request)
        return "freed", None

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.calls.append("preempt")
        self.running.remove(request)
        self.waiting.appendleft(request)
        self.pool.free_blocks(reversed(self.kv_cache_manager.held.pop(request.request_id, [])))
        request.status.name, request.num_computed_tokens = "PREEMPTED", 0

    def reset_prefix_cache(self) -> bool:
        return self.pool.free_block_queue.num_free_blocks == self.pool.num_gpu_blocks - 1

    # For tests

    def compute(self, request: RequestDouble) -> None:
        """The request's prompt is computed: its whole blocks are hashed."""
        blocks = self.kv_cache_manager.allocate_slots(request, len(request.block_hashes))
        assert blocks is not None
        for block, block_hash in zip(blocks, request.block_hashes, strict=True):
            block.block_hash = block_hash
            self.pool.cached_block_hash_to_block[block_hash] = block

    def cached(self, words: str) -> int:
        """How many of the first blocks of these words are cached."""
        hashes = RequestDouble("", words).block_hashes
        known = [block_hash in self.pool.cached_block_hash_to_block for block_hash in hashes]
        return (*known, False).index(False)
