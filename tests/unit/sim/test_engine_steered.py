"""What the engine model does under the daemon's engine policies: order, shrinking, eviction, switching."""

from typing import Any

import pytest
from engine_operations import running_blocks
from toy_engine import MS, US, call, ends, engine, finish, first, run

from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.priority.ttl_first import TtlFirst
from controlplane.lab.sim.engine_model import Call, EngineModel

MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


def waiting(model: EngineModel, now_ns: int) -> int:
    return model.pool_sample(now_ns).turns_waiting


# The order of the queue


def queued_behind(model: EngineModel, calls: list[Call]) -> None:
    """A call that runs alone, and ``calls`` that wait for it to end, a microsecond apart."""
    model.submit(call("runs", 16, 500), 0)
    model.advance(0)
    for index, waits in enumerate(calls):
        model.submit(waits, (30 + index) * US)


def test_a_heavily_served_program_is_demoted_and_the_windows_end_restores_it() -> None:
    for window_s, expected in ((10.0, ["runs", "fresh", "served"]), (0.0001, ["runs", "served", "fresh"])):
        model = engine(max_running=1, priority=Mlfq(quota_chunks=0.01, window_s=window_s))
        model.submit(call("before", 160, program="served"), 0)  # a level's quota is 81 tokens
        finish(model)
        model.submit(call("runs", 16, 500), 1 * MS)
        model.advance(1 * MS)
        model.submit(call("served", 16), 1 * MS + 30 * US)
        model.submit(call("fresh", 16), 1 * MS + 31 * US)
        assert list(first(finish(model))) == expected, f"window of {window_s} s"


@pytest.mark.parametrize(("priority", "overtakes"), [(Fcfs(), False), (Mlfq(), True)], ids=repr)
def test_a_small_call_overtakes_a_large_one_that_found_no_room(priority: Any, overtakes: bool) -> None:
    model = engine(pool_blocks=100, priority=priority)
    model.submit(call("runs", 16, 640), 0)
    model.advance(26 * US)
    model.submit(call("large", 80 * 16), 30 * US)
    finish(model, 100 * US)
    assert waiting(model, 100 * US) == 1
    model.submit(call("small", 16), 100 * US)
    early = ends(finish(model, 200 * US))
    assert sorted(early) == (["small"] if overtakes else [])
    assert sorted(early | ends(finish(model))) == ["large", "runs", "small"]


@pytest.mark.parametrize("aligned", [False, True])
def test_the_running_call_of_the_lowest_level_is_retracted_where_the_policy_says_so(aligned: bool) -> None:
    """Both have come to the last level: the larger goes. Else it is the newest."""
    model = engine(pool_blocks=200, priority=Mlfq(), memory=Opportunistic(aligned=aligned))
    model.submit(call("old", 100, 2500), 0)
    events = model.advance(900 * US)  # the reserve for old's output has decayed by now
    model.submit(call("new", 100, 1500), 900 * US)
    events += finish(model)
    assert model.pool_sample(10**9).retractions == 1
    ended = ends(events)
    assert min(ended, key=lambda name: ended[name].at_ns) == ("new" if aligned else "old")


def test_a_call_that_returns_to_its_cached_context_goes_before_one_that_has_none() -> None:
    for policy, expected in ((Mlfq(cold=True), ["runs", "warm", "cold"]), (Mlfq(), ["runs", "cold", "warm"])):
        model = engine(max_running=1, priority=policy)
        run(model, "before", 640, program="warm")
        queued_behind(model, [call("cold", 500), call("warm", 660, program="warm", reusable_tokens=640)])
        assert list(first(finish(model))) == expected, policy


# The size of a chunk


@pytest.mark.parametrize(
    ("memory", "begins"), [(Lru(), False), (Opportunistic(shrink=False), False), (Opportunistic(), True)], ids=repr
)
def test_a_call_that_does_not_fit_begins_in_part_only_with_a_policy_that_shrinks(memory: Any, begins: bool) -> None:
    model = engine(pool_blocks=100, memory=memory)
    model.submit(call("runs", 16, 640), 0)  # 41 blocks in the end
    model.advance(26 * US)
    model.submit(call("large", 80 * 16), 30 * US)
    events = finish(model, 200 * US)
    assert waiting(model, 200 * US) == (0 if begins else 1)
    assert running_blocks(model) + model.cache.free_blocks == 100
    events += finish(model)
    assert {name: end.ok for name, end in ends(events).items()} == {"runs": True, "large": True}
    assert model.pool_sample(10**9).retractions == 0, "what runs can still end: the part leaves room for it"


def test_what_began_in_part_goes_on_only_in_room_that_nobody_who_runs_will_need() -> None:
    """As in the plugin: ``short`` ends and gives its blocks back, which ``runs`` will need for its output."""
    model = engine(pool_blocks=100, memory=Opportunistic())
    model.submit(call("runs", 16, 640), 0)  # 41 blocks in the end
    model.submit(call("short", 20 * 16, 200), 0)
    model.advance(0)
    model.submit(call("large", 90 * 16), 400 * US)
    events = finish(model)
    assert {name: end.ok for name, end in ends(events).items()} == {"runs": True, "short": True, "large": True}
    assert list(first(events))[-1] == "large"
    assert model.pool_sample(10**9).retractions == 0


def test_a_call_begins_in_part_only_with_a_chunk_that_is_worth_a_step() -> None:
    """The floor is 64 tokens, four blocks. ``runs`` may come to hold 41 blocks, and one is kept in reserve."""
    for pool_blocks, begins in ((41 + 8, True), (41 + 4, False)):
        model = engine(pool_blocks=pool_blocks, memory=Opportunistic())
        model.submit(call("runs", 16, 640), 0)
        model.advance(26 * US)
        model.submit(call("large", 40 * 16), 30 * US)
        finish(model, 200 * US)
        assert waiting(model, 200 * US) == (0 if begins else 1), f"{pool_blocks} blocks"
        assert ends(finish(model))["large"].ok


@pytest.mark.parametrize("parked", [False, True])
def test_a_context_that_is_waited_for_is_not_evicted_so_that_a_call_may_begin_early(parked: bool) -> None:
    model = engine(pool_blocks=140, memory=Opportunistic())
    with_contexts(model, ("a", 100))
    model.park("a", parked)
    model.submit(call("runs", 16, 640), 2 * MS)
    model.advance(2 * MS + 26 * US)
    model.submit(call("large", 120 * 16), 2 * MS + 30 * US)
    finish(model, 2 * MS + 150 * US)
    assert waiting(model, 2 * MS + 150 * US) == (0 if parked else 1)
    assert (cached_blocks(model).get("a", 0) < 100) is parked
    assert all(end.ok for end in ends(finish(model)).values())


# What is evicted


def with_contexts(model: EngineModel, *sizes: tuple[str, int]) -> None:
    """Contexts of so many blocks, each a piece of its own; the first context is the least recently used."""
    for index, (program, blocks) in enumerate(sizes):
        model.submit(call(program + " 1", blocks * 16, program=program), index)
        finish(model)
        node = model.cache.find(program)
        assert node is not None
        node.ends = list(range(1, blocks))


def cached_blocks(model: EngineModel) -> dict[str, int]:
    return {name: node.blocks for name in "abc" if (node := model.cache.find(name)) is not None}


@pytest.mark.parametrize(
    ("memory", "left"), [(Lru(), {"b": 10, "c": 10}), (Opportunistic(), {"a": 10, "c": 10})], ids=repr
)
def test_parked_programs_are_evicted_first(memory: Any, left: dict[str, int]) -> None:
    model = engine(pool_blocks=32, memory=memory)
    with_contexts(model, ("a", 10), ("b", 10), ("c", 10))
    model.park("b")
    model.submit(call("new", 12 * 16), 1 * MS)
    finish(model)
    assert cached_blocks(model) == left


def test_parking_counts_from_then_on() -> None:
    """Blocks that were taken before came from the least recently used context."""
    model = engine(pool_blocks=22, memory=Opportunistic(aligned=False))
    with_contexts(model, ("a", 10), ("b", 10))
    model.submit(call("runs", 32, 97), 1 * MS)  # two blocks are free; six more are needed, one each 16 us
    finish(model, 1 * MS + (42 + 40) * US)
    model.park("b", True, 1 * MS + (42 + 40) * US)
    finish(model)
    assert cached_blocks(model) == {"a": 7, "b": 7}


# Switching


def test_policies_are_switched_while_calls_wait() -> None:
    model = engine(max_running=1)
    queued_behind(model, [call("large", 5000), call("small 1", 100), call("small 2", 100), call("late", 6000)])
    model.use(MARS, 100 * US)
    model.use(STOCK, 110 * US)
    model.use(MARS, 120 * US)
    events = finish(model, 600 * US)  # "runs" ends at 525 us; "small 1" is the next
    model.use(STOCK, 600 * US)
    events += finish(model)
    assert list(first(events)) == ["runs", "small 1", "large", "small 2", "late"]
    assert len(ends(events)) == 5


def test_service_counts_from_the_switch_on() -> None:
    model = engine(max_running=1)
    model.submit(call("before", 160, program="early"), 0)
    finish(model)
    model.use(EnginePolicies(priority=Mlfq(quota_chunks=0.01)), 1 * MS)  # a level's quota is 81 tokens
    model.submit(call("after", 160, program="late"), 1 * MS)
    finish(model)
    model.submit(call("runs", 16, 500), 2 * MS)
    model.advance(2 * MS)
    for index, program in enumerate(("late", "early")):
        model.submit(call(program, 16), 2 * MS + (30 + index) * US)
    assert list(first(finish(model))) == ["runs", "early", "late"]


# Pins and chunks


@pytest.mark.parametrize(("asked", "pins"), [((720, 1), {"a"}), ((64, 720), set())])
def test_a_chunk_shrinks_before_a_pin_is_given_up(asked: tuple[int, int], pins: set[str]) -> None:
    """As in the plugin, which is asked for pins only where not even a part may begin.

    A part that is all of its prompt is no smaller chunk: what the call lacks is room for its output. Of 60 blocks
    10 are "a"'s and pinned, and "r" runs in 6 in the end.
    """
    model = engine(60, priority=MARS.priority, memory=MARS.memory)
    run(model, "a", 160)
    model.retain("a", 10 * MS, 200 * US)
    model.submit(call("r", 16, 80), 200 * US)
    model.advance(200 * US)
    model.submit(call("w", *asked), 201 * US)
    model.advance(240 * US)
    assert (waiting(model, 240 * US), set(model.cache.pins())) == (0, pins)
    assert ends(finish(model))["w"].ok, "in the end there is room for the rest"


# Continuum's pins

CONTINUUM = EnginePolicies(priority=TtlFirst(), memory=Lru(keep_pins=True))


@pytest.mark.parametrize(("policies", "kept"), [(STOCK, False), (MARS, False), (CONTINUUM, True)])
def test_only_continuum_lets_a_call_wait_for_pinned_memory(policies: EnginePolicies, kept: bool) -> None:
    """30 blocks: 10 are "a"'s and pinned until 10 ms, "r" runs from 0.2 ms and takes 2 to 17 of the others."""
    model = engine(30, priority=policies.priority, memory=policies.memory)
    run(model, "a", 160)
    model.retain("a", 10 * MS, 200 * US)
    model.submit(call("r", 16, 250), 200 * US)
    model.advance(200 * US)
    model.submit(call("w", 200, 1), 201 * US)
    model.advance(300 * US)
    assert (waiting(model, 300 * US) == 1) == kept
    assert bool(model.cache.pins()) == kept
    assert ends(finish(model))["w"].ok, "and it runs in the end"


def test_a_pin_past_its_time_holds_while_its_program_waits() -> None:
    model = engine(30, priority=CONTINUUM.priority, memory=CONTINUUM.memory)
    model.submit(call("a1", 160, program="a"), 0)
    finish(model, 100 * US)
    model.retain("a", 300 * US, 200 * US)
    model.submit(call("r", 16, 300), 200 * US)  # takes what a2 would need until 0.52 ms
    model.advance(200 * US)
    model.submit(call("a2", 300, program="a", reusable_tokens=160), 210 * US)
    model.advance(211 * US)
    assert waiting(model, 211 * US) == 1
    model.advance(301 * US)
    assert (waiting(model, 301 * US), set(model.cache.pins())) == (1, {"a"})
    assert model.retain("a", 305 * US, 302 * US) == "", "a pin may be renewed while it is overdue"
    model.advance(306 * US)
    assert set(model.cache.pins()) == {"a"}
    model.abort("a2", 310 * US)
    assert model.pool_sample(311 * US).retained_blocks == 0, "and not when it has gone"


def test_a_deadlock_of_pins_is_broken_from_the_latest_program_on() -> None:
    model = engine(30, priority=CONTINUUM.priority, memory=CONTINUUM.memory)
    for at, name in ((1, "a"), (2, "b")):
        model.submit(call(f"{name}1", 224, program=name, arrived_at_ns=at), model.pool_sample(0).at_ns)
        finish(model)
    now_ns = model.pool_sample(0).at_ns
    assert model.retain("a", now_ns + 10**9, now_ns) == ""
    assert model.retain("b", now_ns + 10**9, now_ns) == ""
    model.submit(call("new", 160), now_ns)
    assert ends(finish(model))["new"].ok
    assert set(model.cache.pins()) == {"a"}


@pytest.mark.parametrize(("policies", "said"), [(CONTINUUM, ""), (MARS, "the pin budget is spent")])
def test_the_memory_policy_says_how_much_pins_may_take(policies: EnginePolicies, said: str) -> None:
    model = engine(30)
    model.submit(call("a", 320), 0)
    finish(model)
    now_ns = model.pool_sample(0).at_ns
    model.use(policies, now_ns)
    assert model.retain("a", now_ns + 10**9, now_ns) == said
