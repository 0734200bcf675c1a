"""The stock engine's order and eviction."""

import pytest

from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.protocols import EngineShape, Fit, QueuedCall, Resident


def resident(name: str, blocks: int, at: int = 0) -> Resident:
    return Resident(program_id=name, blocks=blocks, last_used_ns=at)


ENGINE = EngineShape(pool_blocks=1000, block_tokens=16, chunk_tokens=8192)
CACHED = [resident("old", 4, 1), resident("mid", 10, 2), resident("new", 10, 3)]


def fit(chunk: int, shortfall: int) -> Fit:
    return Lru().fit(chunk, shortfall, 1, iter(CACHED), 0)


def test_lru_schedules_nothing_when_all_of_it_is_not_enough() -> None:
    assert fit(30, 25) == Fit(chunk_blocks=0, victims=())


def test_lru_evicts_nobody_without_a_shortfall_and_reads_no_candidate() -> None:
    unread = iter(CACHED)
    assert Lru().fit(5, 0, 1, unread, 0) == Fit(chunk_blocks=5, victims=[])
    assert list(unread) == CACHED


def test_calls_go_in_the_order_in_which_they_came() -> None:
    def call(turn: str, at: int) -> QueuedCall:
        return QueuedCall(turn_id=turn, program_id=turn, queued_at_ns=at, footprint_blocks=1)

    calls = [call("c", 3), call("b", 1), call("a", 1)]
    order = Fcfs().order(calls, ENGINE, 0)
    assert [one.turn_id for one in order] == ["a", "b", "c"]


def test_first_come_first_served_has_one_level_and_counts_no_service() -> None:
    assert {Fcfs().level(blocks, served, ENGINE) for blocks in (0, 10**6) for served in (0, 10**9)} == {0}
    assert Fcfs().window_ns == 0


@pytest.mark.parametrize(("block_tokens", "floor_blocks"), [(1, 64), (16, 4), (60, 2), (64, 1), (65, 1), (4096, 1)])
def test_the_smallest_chunk_is_the_floor_in_whole_blocks(block_tokens: int, floor_blocks: int) -> None:
    shape = EngineShape(pool_blocks=1000, block_tokens=block_tokens, chunk_tokens=8192)
    assert shape.floor_blocks == floor_blocks
