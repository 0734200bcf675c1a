"""Shrink before evicting what is waited for; evict as the queue's priorities say."""

import pytest

from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.protocols import Fit, Resident

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


def test_with_room_enough_nothing_happens() -> None:
    found = fit(20, 0, resident("parked", 9, parked=True))
    assert (found.chunk_blocks, list(found.victims)) == (20, [])


def test_the_chunk_shrinks_by_what_parked_contexts_do_not_give() -> None:
    found = fit(20, 9, resident("live", 50), resident("parked", 4, parked=True))
    assert (found.chunk_blocks, list(found.victims)) == (15, [("parked", 4)])


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


def test_who_shrinks_says_so() -> None:
    assert Opportunistic().shrinks
    assert not Lru().shrinks
