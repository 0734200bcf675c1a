"""Shrink before evicting what is waited for; evict as the queue's priorities say."""

import pytest

from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.policies import Fit, Resident

FLOOR = 4


def resident(name: str, blocks: int, *, level: int = 0, parked: bool = False) -> Resident:
    return Resident(program_id=name, blocks=blocks, last_used_ns=0, level=level, parked=parked)


def fit(
    chunk: int,
    shortfall: int,
    *candidates: Resident,
    least: int = FLOOR,
    shrink: bool = True,
    aligned: bool = True,
) -> Fit:
    """``candidates`` least recently used first."""
    policy = Opportunistic(shrink=shrink, aligned=aligned)
    return policy.fit(chunk, shortfall, least, candidates, 0)


def names(found: Fit) -> list[str]:
    return [name for name, _ in found.victims]


def test_with_room_enough_nothing_happens() -> None:
    found = fit(20, 0, resident("parked", 9, parked=True))
    assert (found.chunk_blocks, list(found.victims)) == (20, [])


def test_parked_contexts_go_first_and_the_chunk_keeps_its_size() -> None:
    found = fit(
        20,
        9,
        resident("old", 50),
        resident("p1", 5, parked=True),
        resident("p2", 9, parked=True),
        resident("new", 50),
    )
    assert found.chunk_blocks == 20
    assert list(found.victims) == [("p1", 5), ("p2", 4)]  # of the last only its tail


def test_parked_contexts_go_least_recently_used_first_whatever_their_level() -> None:
    found = fit(
        20, 9, resident("older", 5, parked=True), resident("large", 90, level=3, parked=True), resident("new", 50)
    )
    assert list(found.victims) == [("older", 5), ("large", 4)]


def test_the_chunk_shrinks_before_a_live_context_is_evicted() -> None:
    found = fit(20, 9, resident("live", 50, level=3))
    assert (found.chunk_blocks, list(found.victims)) == (11, [])


def test_the_chunk_shrinks_by_what_parked_contexts_do_not_give() -> None:
    found = fit(20, 9, resident("live", 50), resident("parked", 4, parked=True))
    assert (found.chunk_blocks, list(found.victims)) == (15, [("parked", 4)])


def test_the_chunk_shrinks_down_to_the_floor_and_no_further() -> None:
    live = resident("live", 50)
    assert fit(20, 20 - FLOOR, live) == Fit(chunk_blocks=FLOOR, victims=[])
    below = fit(20, 20 - FLOOR + 1, live)
    assert below.chunk_blocks >= FLOOR
    assert names(below) == ["live"]


def test_below_the_floor_live_contexts_go_lowest_level_first_and_among_them_the_larger() -> None:
    found = fit(
        20,
        19,
        resident("high", 50, level=0),
        resident("low small", 3, level=3),
        resident("middle", 8, level=1),
        resident("low large", 6, level=3),
        resident("parked", 2, level=0, parked=True),
    )
    assert names(found) == ["parked", "low large", "low small", "middle"]
    assert found.chunk_blocks == 20 - 19 + sum(blocks for _, blocks in found.victims)


def test_equals_go_least_recently_used_first() -> None:
    found = fit(4, 4, resident("older", 3, level=2), resident("newer", 3, level=2))
    assert list(found.victims) == [("older", 3), ("newer", 1)]


def test_nothing_is_evicted_for_a_chunk_that_cannot_be_placed() -> None:
    everything = (resident("live", 2), resident("parked", 3, parked=True))
    assert fit(20, 16 + 5, *everything).chunk_blocks >= FLOOR
    found = fit(30, 30 - FLOOR + 6, *everything)  # all five are evicted, and one block is missing to the floor
    assert (found.chunk_blocks, list(found.victims)) == (0, [])


def test_a_chunk_below_the_floor_is_taken_whole() -> None:
    assert fit(2, 2, resident("live", 9)).chunk_blocks == 2
    assert fit(2, 1, resident("live", 1)).chunk_blocks == 2
    assert fit(2, 2, resident("live", 1)).chunk_blocks == 0


def test_growth_while_decoding_never_shrinks() -> None:
    assert fit(8, 5, resident("live", 9), least=8) == Fit(chunk_blocks=8, victims=[("live", 5)])
    assert fit(8, 5, resident("live", 4), least=8) == Fit(chunk_blocks=0, victims=())


def test_without_shrinking_it_is_all_or_nothing() -> None:
    assert not Opportunistic(shrink=False).shrinks
    live = resident("live", 5)
    assert fit(20, 5, live, shrink=False) == Fit(chunk_blocks=20, victims=[("live", 5)])
    assert fit(20, 6, live, shrink=False) == Fit(chunk_blocks=0, victims=())
    parked_and_live = (live, resident("parked", 4, parked=True))
    assert fit(20, 6, *parked_and_live, shrink=False).victims == [("parked", 4), ("live", 2)]


@pytest.mark.parametrize(("chunk", "shortfall"), [(20, 0), (20, 1), (20, 7), (20, 19), (20, 20), (30, 30)])
def test_unaligned_and_without_shrinking_it_is_lru(chunk: int, shortfall: int) -> None:
    cached = [resident("old", 4, level=0), resident("mid", 10, level=3), resident("new", 6, level=1)]
    found = fit(chunk, shortfall, *cached, shrink=False, aligned=False)
    expected = Lru().fit(chunk, shortfall, FLOOR, iter(cached), 0)
    assert (found.chunk_blocks, list(found.victims)) == (expected.chunk_blocks, list(expected.victims))


def test_unaligned_live_contexts_go_least_recently_used_first() -> None:
    found = fit(4, 4, resident("old", 3, level=0), resident("large", 9, level=3), aligned=False)
    assert list(found.victims) == [("old", 3), ("large", 1)]


def test_who_shrinks_says_so() -> None:
    assert Opportunistic().shrinks
    assert not Lru().shrinks
