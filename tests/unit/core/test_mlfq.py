"""The multi-level feedback queue: levels, quotas, promotion, order."""

import pytest

from controlplane.core.model.types import seconds
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.protocols import EngineShape, QueuedCall

# A pool of 6400 blocks: the shares 1/64, 1/16 and 1/4 are 100, 400 and 1600 of them.
# A chunk of 1000 tokens: two of them are level 0's quota, four level 1's, eight level 2's.
ENGINE = EngineShape(pool_blocks=6400, block_tokens=16, chunk_tokens=1000)
MLFQ = Mlfq()


def call(name: str, *, at_s: float = 0, blocks: int = 1, served: int = 0, cached: int = 0) -> QueuedCall:
    return QueuedCall(
        turn_id=name,
        program_id=name,
        queued_at_ns=seconds(at_s),
        footprint_blocks=blocks,
        cached_blocks=cached,
        served_tokens=served,
    )


def order(calls: list[QueuedCall], now_s: float = 0, policy: Mlfq = MLFQ) -> list[str]:
    return [one.turn_id for one in policy.order(calls, ENGINE, seconds(now_s))]


@pytest.mark.parametrize(
    ("blocks", "level"), [(0, 0), (100, 0), (101, 1), (400, 1), (401, 2), (1600, 2), (1601, 3), (10**9, 3)]
)
def test_the_footprint_gives_the_level_to_begin_at(blocks: int, level: int) -> None:
    assert MLFQ.level(blocks, 0, ENGINE) == level


@pytest.mark.parametrize(
    ("blocks", "served", "level"),
    [
        (1, 1999, 0),
        (1, 2001, 1),  # 2000 at level 0 are used up
        (1, 5999, 1),
        (1, 6001, 2),  # and 4000 at level 1
        (1, 13_999, 2),
        (1, 14_001, 3),  # and 8000 at level 2
        (1, 10**12, 3),
        (101, 3999, 1),  # who begins at level 1 has its quota, not level 0's
        (101, 4001, 2),
        (401, 7999, 2),
        (401, 8001, 3),
        (1601, 10**12, 3),
    ],
)
def test_service_beyond_a_levels_quota_demotes(blocks: int, served: int, level: int) -> None:
    assert MLFQ.level(blocks, served, ENGINE) == level


def test_parameters_set_the_levels_and_the_quotas() -> None:
    two = Mlfq(shares=(0.5,), quota_chunks=0.1, promotions=0)
    assert [two.level(blocks, 0, ENGINE) for blocks in (3200, 3201)] == [0, 1]
    assert [two.level(1, served, ENGINE) for served in (99, 101, 10**6)] == [0, 1, 1]


def test_the_window_in_nanoseconds() -> None:
    assert Mlfq(window_s=1.5).window_ns == 1_500_000_000


def test_a_long_wait_raises_a_call_one_level() -> None:
    calls = [call("waits", at_s=0, blocks=101), call("fresh", at_s=9.5, blocks=1)]
    assert order(calls, now_s=9.9) == ["fresh", "waits"]
    assert order(calls, now_s=10) == ["waits", "fresh"]


def test_by_default_every_call_rises_to_the_top_in_the_end() -> None:
    calls = [call("waits", at_s=0, blocks=1601), call("fresh", at_s=29, blocks=1)]
    assert order(calls, now_s=29) == ["fresh", "waits"]
    assert order(calls, now_s=30) == ["waits", "fresh"]


def test_what_a_call_finds_cached_is_no_part_of_a_cold_footprint() -> None:
    calls = [call("small", blocks=101), call("warm", blocks=1601, cached=1550), call("lost", blocks=1601)]
    assert order(calls, policy=Mlfq(cold=True)) == ["warm", "small", "lost"]
    assert order(calls) == ["small", "lost", "warm"], "of one level by name"


def test_a_golden_example() -> None:
    """Six calls at 12 s, by hand."""
    # call | footprint: begins at | served: stands at       | waits: risen to | runs as number
    # a    |        50:         0 |      0: 0               |   1 s           | 2
    # b    |        50:         0 |   2500: 1 (2000 are up) |  11 s: 0        | 1, came before a
    # c    |       300:         1 |   2500: 1 (of 4000)     |   2 s           | 4
    # d    |       300:         1 |   4500: 2 (4000 are up) |  12 s: 1        | 3, came before c
    # e    |      1000:         2 |      0: 2               |   9 s           | 6
    # f    |      5000:         3 |      0: 3               |  12 s: 2        | 5, came before e
    calls = [
        call("a", at_s=11, blocks=50),
        call("b", at_s=1, blocks=50, served=2500),
        call("c", at_s=10, blocks=300, served=2500),
        call("d", at_s=0, blocks=300, served=4500),
        call("e", at_s=3, blocks=1000),
        call("f", at_s=0, blocks=5000),
    ]
    assert order(calls, now_s=12) == ["b", "a", "d", "c", "f", "e"]
