"""Several KV cache groups, over doubles of what vLLM has for them; tests/engine has the real ones."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_double import (
    BLOCK_TOKENS,
    BlockDouble,
    FullAttentionManager,
    RequestDouble,
    SchedulerDouble,
    SlidingWindowManager,
    VllmDouble,
)

from engine_hooks.vllm.engine_view import EngineView
from engine_hooks.vllm.groups import ContextKey, Groups, OneFullGroup, groups_of

A = "a1 a2 a3 a4"


class CoordinatorDouble(SimpleNamespace):
    """vLLM's ``KVCacheCoordinator``: it finds what it was told to."""

    single_type_managers: Sequence[Any]
    found: tuple[Sequence[Any], ...]
    tokens: int

    def find_longest_cache_hit(self, block_hashes: Sequence[str], max_cache_hit_length: int) -> tuple[Any, ...]:
        assert max_cache_hit_length == len(block_hashes) * BLOCK_TOKENS
        return self.found, self.tokens, 0


def block(number: int, block_hash: str = "") -> Any:
    made: Any = BlockDouble(number)
    made.block_hash = block_hash or None
    return made


def scheduler_of(*managers: Any, retention: int | None = 0, **coordinator: Any) -> Any:
    scheduler = SchedulerDouble(managers=managers)
    made = CoordinatorDouble(single_type_managers=managers, retention_interval=retention, **coordinator)
    scheduler.kv_cache_manager.coordinator = made
    return scheduler


def key_of(words: str) -> ContextKey:
    return ContextKey(RequestDouble("", words).block_hashes, (), BLOCK_TOKENS)


@pytest.fixture(autouse=True)
def pool(vllm: VllmDouble) -> None:
    """vLLM's modules are doubles."""


def test_one_group_of_full_attention_is_not_looked_up() -> None:
    assert isinstance(groups_of(SchedulerDouble()), OneFullGroup)
    assert type(groups_of(scheduler_of(SlidingWindowManager()))) is Groups, "vLLM knows what a hit needs"
    coarse = SchedulerDouble()
    coarse.pool.hash_block_size = BLOCK_TOKENS // 2
    assert type(groups_of(coarse)) is Groups


def test_a_hit_needs_what_vllm_finds_and_nothing_of_placeholders() -> None:
    """They come by position, so that what is given back from the end loses no beginning before it must."""
    null = SimpleNamespace(is_null=True)
    full, window = [block(1), block(2), block(3)], [null, block(5), block(6)]
    groups = groups_of(
        scheduler_of(FullAttentionManager(), SlidingWindowManager(), found=(full, window), tokens=12)
    )
    assert [each.block_id for each in groups.needed(key_of(A))] == [1, 2, 5, 3, 6]


def test_a_draft_heads_hit_needs_the_block_after_it_too() -> None:
    full = [block(1), block(2)]
    scheduler = scheduler_of(
        FullAttentionManager(use_eagle=True), SlidingWindowManager(), found=(full, []), tokens=8
    )
    third = scheduler.pool.cached_block_hash_to_block["a1 a2 a3"] = block(9)
    assert groups_of(scheduler).needed(key_of(A)) == [*full, third]
    scheduler.kv_cache_manager.coordinator.tokens = 0
    assert groups_of(scheduler).needed(key_of(A)) == full


def test_what_a_context_shares_a_part_of_is_another_ones_only_where_a_hit_may_end_within_a_block() -> None:
    managers = (FullAttentionManager(), FullAttentionManager(block_size=4 * BLOCK_TOKENS))
    assert groups_of(scheduler_of(*managers)).own_from(5) == 5
    assert groups_of(scheduler_of(*managers, enable_partial_hash_hits=True)).own_from(5) == 8


def test_a_block_stands_for_what_contexts_have_for_each_that_they_take() -> None:
    scheduler = scheduler_of(FullAttentionManager(), SlidingWindowManager(), SlidingWindowManager())
    scheduler.max_model_len = 4000
    view = EngineView(scheduler)
    assert view.page_tokens == 4, "1000 blocks and two windows of 3"
    assert not view.note_context(4000)
    view = EngineView(scheduler)
    assert view.note_context(20)
    assert view.page_tokens == 2, "5 blocks and two windows of 3"
    assert view.pool_tokens == 16 * 2
    assert not view.note_context(0), "nothing was computed"
    one = EngineView(SchedulerDouble())
    assert (one.page_tokens, one.note_context(17)) == (BLOCK_TOKENS, False)


@pytest.mark.parametrize(
    ("manager", "retention", "told"),
    [
        (FullAttentionManager(), 0, "every block is kept"),
        (SlidingWindowManager(), 0, "where a prompt ended"),
        (SlidingWindowManager(), 64, "each 64 tokens and where a prompt ended"),
        (SlidingWindowManager(), None, "at each block"),
        (FullAttentionManager(kv_cache_spec=SimpleNamespace(prefix_cacheable=False)), 0, "nothing is kept"),
    ],
)
def test_what_can_be_pinned_is_told_of_each_group(manager: Any, retention: int | None, told: str) -> None:
    (first, said) = groups_of(scheduler_of(FullAttentionManager(), manager, retention=retention)).told()
    assert first == "group 0: FullAttentionManager, blocks of 4 tokens: every block is kept"
    assert said.startswith(f"group 1: {type(manager).__name__}, blocks of 4 tokens: ")
    assert told in said
