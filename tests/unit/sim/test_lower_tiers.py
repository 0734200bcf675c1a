"""KV memory below the device: what goes there, what comes back, what that costs, and whose copies make room."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from engine_operations import DRAM, TOY
from toy_engine import call, finish, first

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ContextMoved, FirstToken
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.memory.typed import Typed
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.lower_tiers import LowerTiers, Tier, TierSpec, parse_tier
from controlplane.lab.sim.prefix_cache import context_key

BLOCK_PS = 16 * 1000 * 100  # TOY's 1000 bytes a token at 10 bytes a ns


def tier(blocks: int, **ranks: int) -> Tier:
    return Tier(blocks, 1, lambda name: ranks.get(name, 0))


def held(tier: Tier, *names: str) -> list[int]:
    return [tier.held(name) for name in names]


# One tier


def test_the_least_recently_used_copy_makes_room_and_loses_its_tail() -> None:
    one = tier(10)
    assert one.put("a", 6) == []
    assert one.put("b", 4) == []
    assert one.put("c", 3) == [("a", 6)]
    assert held(one, "a", "b", "c") == [3, 4, 3]
    one.touch("a")
    assert one.put("d", 5) == [("b", 4), ("c", 3)]
    assert held(one, "a", "b", "c", "d") == [3, 0, 2, 5]
    assert one.used_blocks == 10


def test_a_copy_grows_and_never_shrinks_by_being_put_again() -> None:
    one = tier(10)
    one.put("a", 4)
    one.put("a", 2)
    assert one.held("a") == 4
    one.put("a", 7)
    assert (one.held("a"), one.used_blocks) == (7, 7)
    one.cut("a", 5)
    one.cut("a", 9)
    assert (one.held("a"), one.used_blocks) == (5, 5)


def test_the_rank_goes_before_the_last_use_and_nobody_displaces_a_higher_one() -> None:
    one = tier(10, idle=2, busy=1, next=1)
    one.put("idle", 5)
    one.put("busy", 5)
    assert one.put("next", 3) == [("busy", 5)]
    assert held(one, "idle", "busy", "next") == [5, 2, 3]
    assert one.put("gone", 5) == []
    assert held(one, "gone") == [0]
    assert one.put("idle", 25) == [("busy", 2), ("next", 3)], "cut to the tier"
    assert held(one, "idle") == [10]


# A chain


def test_what_leaves_one_tier_goes_to_the_next_and_is_read_from_the_fastest() -> None:
    below = LowerTiers([Tier(10, 100, lambda name: 0), Tier(5, 1000, lambda name: 0)])
    below.keep("a", 8)
    below.keep("b", 6)
    assert below.used_blocks == 15
    assert below.find("a", 0, 100) == (5, 4 * 100 + 1 * 1000), "four in the first tier, five in the second"
    assert below.find("a", 2, 100) == (3, 2 * 100 + 1000)
    assert below.find("a", 0, 3) == (3, 300)
    assert below.find("a", 5, 100) == (0, 0)
    below.cut("a", 0)
    assert not below.holds("a")
    assert below.holds("b")
    assert below.total_blocks == 15


# The engine


def engine(pool_blocks: int, tiers: tuple[TierSpec, ...] = (DRAM,), **options: Any) -> EngineModel:
    return EngineModel(TOY, pool_blocks=pool_blocks, tiers=tiers, **options)


def run(
    model: EngineModel, name: str, prompt: int, reusable: int = 0, program: str = "", **more: Any
) -> FirstToken:
    """One call to its end; how it began."""
    model.submit(call(name, prompt, program=program, reusable_tokens=reusable, **more), 0)
    return first(finish(model))[name]


@pytest.mark.parametrize(("gb_per_s", "load_ns"), [(10.0, 6 * BLOCK_PS // 1000), (0.1, 6 * 16 * 1000 * 10)])
def test_an_evicted_context_is_loaded_back_beside_the_computation(gb_per_s: float, load_ns: int) -> None:
    model = engine(20, (dataclasses.replace(DRAM, gb_per_s=gb_per_s),))
    run(model, "a0", 64, program="a")
    run(model, "a1", 160, reusable=64, program="a")  # a piece of 4 blocks and one of 6
    run(model, "b", 256)
    assert model.cache.find("a").blocks == 4
    token = run(model, "a2", 176, reusable=160, program="a")
    assert (token.cached_tokens, token.prefill_ns) == (160, 10_000 + max(16_000, load_ns))
    assert model.cache.below.loaded_blocks == 6


def test_a_history_that_was_rewritten_is_not_loaded_beyond_what_is_shared() -> None:
    model = engine(20)
    run(model, "a", 160)
    run(model, "b", 256)
    assert run(model, "a2", 176, reusable=96, program="a").cached_tokens == 96
    run(model, "b2", 256, program="b2")
    assert run(model, "a3", 176, reusable=176, program="a").cached_tokens == 160, "as far as it goes now"


def test_demote_moves_it_at_once_and_discard_leaves_nothing_anywhere() -> None:
    model = engine(100)
    run(model, "a", 160)
    free = model.cache.free_blocks
    assert model.demote("a")
    assert model.cache.free_blocks == free + 10
    assert run(model, "a2", 176, reusable=160, program="a").cached_tokens == 160
    model.demote("a")
    model.discard("a")
    assert run(model, "a3", 192, reusable=176, program="a").cached_tokens == 0
    assert not model.demote("nobody")
    model.submit(call("b", 160, 100), 0)
    model.advance(model.next_wake_ns())
    assert not model.demote("b"), "its turn runs"


def test_a_shared_prefix_stays_on_the_device() -> None:
    model = engine(30)
    shared = {"prefix_group": "system", "prefix_tokens": 64}
    run(model, "a", 160, **shared)
    model.demote("a")
    assert run(model, "a2", 176, reusable=160, program="a", **shared).cached_tokens == 160
    model.demote("a")
    run(model, "b", 470)
    assert run(model, "a3", 176, reusable=160, program="a", **shared).cached_tokens == 0, "its beginning is gone"


def test_the_sample_tells_of_the_memory_below() -> None:
    model = engine(20)
    run(model, "a", 160)
    model.demote("a")
    sample = model.pool_sample(0)
    assert (sample.host_total_blocks, sample.host_used_blocks) == (187, 10)
    assert engine(20, ()).pool_sample(0).host_total_blocks == 0


def test_of_a_program_with_several_contexts_commands_move_the_latest_and_its_name_is_told() -> None:
    """As the engine double has them, which finds a prompt's beginning by its content."""
    model = engine(20, (TierSpec(name="dram", tokens=160, gb_per_s=10.0),))
    for number in (1, 2):
        run(model, f"a{number}", 80, program="a", context=context_key("a", number))
    assert model.demote("a")
    again = run(model, "a3", 96, reusable=80, program="a", context=context_key("a", 2))
    assert (again.cached_tokens, again.loaded_tokens) == (80, 80)
    assert model.demote("a")
    assert model.fetch("a") == ""
    model.submit(call("b", 310), 10**12)
    told = [(event.program_id, event.below_tokens) for event in finish(model) if isinstance(event, ContextMoved)]
    assert told == [("a", 96)]


@pytest.mark.parametrize("lies_below", [True, False])
def test_a_call_whose_context_lies_below_does_not_begin_in_part(lies_below: bool) -> None:
    """It is loaded as a whole: into room that what runs will need."""
    model = engine(100, memory=Opportunistic())
    run(model, "back", 30 * 16)
    assert model.demote("back")
    if not lies_below:
        model.cache.below.cut("back", 0)
    now_ns = 10**9
    model.submit(call("runs", 16, 640), now_ns)
    model.advance(now_ns + 26_000)
    model.submit(call("back2", 80 * 16, program="back", reusable_tokens=480), now_ns + 30_000)
    finish(model, now_ns + 200_000)
    assert model.pool_sample(now_ns + 200_000).turns_waiting == (1 if lies_below else 0)


@pytest.mark.parametrize("key", [lambda name: name, lambda name: context_key(name, 1)])
def test_labels_decide_who_is_evicted_and_whose_copy_stays(key: Callable[[str], str]) -> None:
    """Of a program's only context, which has its name, and of one of several."""
    model = engine(20, (TierSpec(name="dram", tokens=160, gb_per_s=10.0),), memory=Typed())
    for name in ("old", "idle"):
        run(model, name, 160, context=key(name))
    model.label("idle", "idle")
    run(model, "new", 160, context=key("new"))
    assert model.cache.find(key("idle")) is None
    assert model.cache.find(key("old")) is not None
    assert model.cache.below.holds(key("idle"))
    model.demote("old")
    assert not model.cache.below.holds(key("old")), "the idle one's copy does not make room for a busy one's"


def test_a_copy_of_a_program_that_ended_makes_room_for_the_living() -> None:
    model = engine(20, (TierSpec(name="dram", tokens=160, gb_per_s=10.0),), memory=Typed())
    for name in ("ended", "rests"):
        run(model, name, 160)
    model.demote("ended")
    model.park("ended")
    model.label("rests", "inactive")
    model.demote("rests")
    assert model.cache.below.holds("rests"), "nobody waits for the other one"


# Its description


def test_a_tier_is_described_in_a_line() -> None:
    spec = parse_tier("dram:2000000:50")
    assert (spec, str(spec)) == (TierSpec(name="dram", tokens=2_000_000, gb_per_s=50.0), "dram:2000000:50")
    for text, told in {
        "dram:0:50": "tokens",
        "dram:100:0": "gb_per_s",
        "dram:100": "NAME",
        "dram:x:50": "NAME",
    }.items():
        with pytest.raises(ConfigError, match=told):
            parse_tier(text)
    with pytest.raises(ConfigError, match="kv_bytes_per_token"):
        EngineModel(dataclasses.replace(TOY, kv_bytes_per_token=0), pool_blocks=10, tiers=(DRAM,))


# What is fetched before it is needed, and what is told


def test_what_was_fetched_too_late_is_waited_for() -> None:
    """As long as a load that began with the turn would take, less what has passed."""
    slow = TierSpec(name="slow", tokens=4000, gb_per_s=0.001)
    took_ns = []
    for fetched in (False, True):
        model = engine(100, (slow,))
        run(model, "a", 160)
        model.demote("a")
        if fetched:
            assert model.fetch("a") == ""
        took_ns.append(run(model, "a2", 176, reusable=160, program="a").prefill_ns)
    assert took_ns[1] == pytest.approx(took_ns[0], rel=0.01)
    model.demote("a")
    assert model.fetch("a") == ""
    model.advance(10**15)
    token = run(model, "a3", 192, reusable=176, program="a")
    assert (token.cached_tokens, token.loaded_tokens, token.prefill_ns) == (176, 0, 10_000 + 16_000), "in time"


def test_a_shared_prefix_must_be_there_for_what_is_fetched_behind_it() -> None:
    model = engine(30)
    shared = {"prefix_group": "system", "prefix_tokens": 64}
    run(model, "a", 160, **shared)
    model.demote("a")
    assert model.fetch("a") == ""
    assert run(model, "a2", 176, reusable=160, program="a", **shared).cached_tokens == 160
    model.demote("a")
    run(model, "b", 470)
    assert "could be used" in model.fetch("a")


def test_what_cannot_be_fetched_is_told_why() -> None:
    assert "no memory below" in engine(100, ()).fetch("a")
    model = engine(20)
    assert "lies below" in model.fetch("nobody")
    run(model, "a", 160)
    assert "lies below" in model.fetch("a"), "it is on the device"
    model.demote("a")
    model.submit(call("b", 300, 20), 10**12)
    model.advance(10**12)
    assert "no room" in model.fetch("a")


def moves(model: EngineModel, name: str, prompt: int) -> list[tuple[str, int]]:
    """What is told of contexts while a call runs."""
    model.submit(call(name, prompt), 0)
    return [(event.program_id, event.below_tokens) for event in finish(model) if isinstance(event, ContextMoved)]


def test_what_left_the_device_unasked_or_lost_its_copy_is_told() -> None:
    model = engine(20, (TierSpec(name="dram", tokens=160, gb_per_s=10.0),))
    run(model, "a", 160)
    assert model.demote("a")
    assert moves(model, "b", 160) == [], "who demoted it knows"
    assert sorted(moves(model, "c", 170)) == [("a", 0), ("b", 160)]
