"""What the engine model does under the daemon's engine policies: order, shrinking, eviction, switching."""

from dataclasses import replace
from typing import Any

import pytest
from engine_operations import TOY, running_blocks

from controlplane.core.engine_policies import STOCK, EnginePolicies
from controlplane.core.events import Event, FirstToken, TurnEnded
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq
from controlplane.core.priority.ttl_first import TtlFirst
from controlplane.lab.sim.engine_model import Call, EngineModel

US = 1000
MS = 1_000_000
MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


def call(name: str, prompt: int, output: int = 1, program: str = "", **more: Any) -> Call:
    return Call(turn_id=name, program_id=program or name, prompt_tokens=prompt, output_tokens=output, **more)


def engine(pool_blocks: int = 1000, **options: Any) -> EngineModel:
    """TOY: a prefill step takes 10 us and 1 us a token, a decode step 1 us; a block has 16 tokens."""
    return EngineModel(TOY, pool_blocks=pool_blocks, **options)


def finish(model: EngineModel, until_ns: int | None = None) -> list[Event]:
    events: list[Event] = []
    while (wake_ns := model.next_wake_ns()) is not None and (until_ns is None or wake_ns <= until_ns):
        events += model.advance(wake_ns)
    if until_ns is not None:
        events += model.advance(until_ns)
    return events


def ends(events: list[Event]) -> dict[str, TurnEnded]:
    return {event.turn_id: event for event in events if isinstance(event, TurnEnded)}


def sequence(events: list[Event]) -> list[str]:
    """Turns in the order of their first tokens."""
    return [event.turn_id for event in events if isinstance(event, FirstToken)]


def waiting(model: EngineModel, now_ns: int) -> int:
    return model.pool_sample(now_ns).turns_waiting


# The order of the queue


def queued_behind(model: EngineModel, calls: list[Call]) -> None:
    """A call that runs alone, and ``calls`` that wait for it to end, a microsecond apart."""
    model.submit(call("runs", 16, 500), 0)
    model.advance(0)
    for index, waits in enumerate(calls):
        model.submit(waits, (30 + index) * US)


def test_small_calls_run_before_large_ones() -> None:
    model = engine(max_running=1, priority=Mlfq())
    queued_behind(model, [call("large", 5000), call("middle", 1000), call("small", 100)])
    assert sequence(finish(model)) == ["runs", "small", "middle", "large"]


def test_a_heavily_served_program_is_demoted_and_the_windows_end_restores_it() -> None:
    for window_s, expected in ((10.0, ["runs", "fresh", "served"]), (0.0001, ["runs", "served", "fresh"])):
        model = engine(max_running=1, priority=Mlfq(quota_chunks=0.01, window_s=window_s))
        model.submit(call("before", 160, program="served"), 0)  # a level's quota is 81 tokens
        finish(model)
        model.submit(call("runs", 16, 500), 1 * MS)
        model.advance(1 * MS)
        model.submit(call("served", 16), 1 * MS + 30 * US)
        model.submit(call("fresh", 16), 1 * MS + 31 * US)
        assert sequence(finish(model)) == expected, f"window of {window_s} s"


def test_a_window_that_ends_while_a_call_waits_restores_it() -> None:
    model = engine(max_running=1, priority=Mlfq(quota_chunks=0.01, window_s=0.001))
    model.submit(call("before", 160, program="served"), 0)
    finish(model)
    model.submit(call("runs", 16, 2000), 300 * US)  # until 2325 us; the window ends at 1000 us
    model.advance(300 * US)
    model.submit(call("served", 16), 330 * US)
    model.submit(call("fresh", 16), 331 * US)
    assert sequence(finish(model)) == ["runs", "served", "fresh"]


@pytest.mark.parametrize("max_jump_steps", [1, 1 << 40])
def test_decoded_tokens_are_served_when_a_call_ends(max_jump_steps: int) -> None:
    """The window that begins then does not depend on how many steps are computed at once."""
    policy = Mlfq(quota_chunks=0.01, window_s=0.001)
    model = engine(max_running=1, priority=policy, max_jump_steps=max_jump_steps)
    model.submit(call("before", 100, 1000, program="served"), 0)  # the prefill's window ends at 1000 us
    assert ends(finish(model))["before"].at_ns == (10 + 100 + 999) * US
    model.submit(call("runs", 16, 500), 1200 * US)
    model.advance(1200 * US)
    model.submit(call("served", 16), 1300 * US)
    model.submit(call("fresh", 16), 1301 * US)
    assert sequence(finish(model)) == ["runs", "fresh", "served"]


def large_among_small(model: EngineModel, large: Call, small: Call, *, every_ns: int, until_ns: int) -> int:
    """When a large call of 0 s ended among small ones of ever new programs. All of them end."""
    model.submit(call("first", 16), 0)
    model.advance(0)
    model.submit(large, 1)
    events: list[Event] = []
    for number, now_ns in enumerate(range(0, until_ns, every_ns)):
        events += finish(model, now_ns)
        model.submit(replace(small, turn_id=f"small {number}", program_id=f"small {number}"), now_ns)
    end = ends(events + finish(model))
    assert len(end) == 2 + number + 1
    assert all(event.ok for event in end.values())
    return end[large.turn_id].at_ns


@pytest.mark.parametrize("promotions", [0, 1, 2, 3])
def test_enough_promotions_let_a_large_call_run_in_bounded_time_among_small_ones(promotions: int) -> None:
    """The large call begins at level 3, the small ones at level 0, and twice as many come as can be served."""
    model = engine(pool_blocks=4000, max_running=1, priority=Mlfq(promote_s=0.03, promotions=promotions))
    until_ns = 500 * MS
    ended_ns = large_among_small(
        model, call("large", 32_000), call("small", 92, 900), every_ns=MS // 2, until_ns=until_ns
    )
    if promotions == 3:  # after 90 ms it stands at level 0 and came before all others but the one that runs
        assert ended_ns <= (90 + 1 + 33) * MS
    else:
        assert ended_ns > until_ns, "whoever never rises to level 0 waits for as long as level 0 is never empty"


@pytest.mark.parametrize(
    "memory", [Lru(), Opportunistic(), Opportunistic(aligned=False), Opportunistic(shrink=False)], ids=repr
)
def test_a_call_that_found_no_room_runs_in_bounded_time_whatever_the_memory_policy(memory: Any) -> None:
    """Small calls crowd the pool, so that the large one has to wait for room, or begins in part."""
    model = engine(pool_blocks=1000, priority=Mlfq(promote_s=0.03, promotions=3), memory=memory)
    ended_ns = large_among_small(
        model, call("large", 800 * 16, 50), call("small", 60 * 16, 800), every_ns=MS, until_ns=400 * MS
    )
    assert ended_ns <= 200 * MS


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
    assert sequence(events)[-1] == "large"
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


def test_what_began_in_part_is_aborted_like_any_other() -> None:
    model = engine(pool_blocks=100, memory=Opportunistic())
    model.submit(call("runs", 16, 640), 0)
    model.advance(26 * US)
    model.submit(call("large", 80 * 16), 30 * US)
    finish(model, 200 * US)
    assert model.abort("large", 200 * US)
    events = finish(model)
    assert {name: end.ok for name, end in ends(events).items()} == {"large": False, "runs": True}
    sample = model.pool_sample(10**9)
    assert sample.free_blocks + sample.evictable_blocks == 100


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


def test_whoever_is_let_in_again_is_evicted_in_turn() -> None:
    model = engine(pool_blocks=32, memory=Opportunistic(shrink=False))
    with_contexts(model, ("a", 10), ("b", 10), ("c", 10))
    model.park("b")
    model.park("b", False)
    model.submit(call("new", 12 * 16), 1 * MS)
    finish(model)
    assert cached_blocks(model) == {"b": 10, "c": 10}


@pytest.mark.parametrize("max_jump_steps", [1, 1 << 40])
def test_parking_counts_from_then_on(max_jump_steps: int) -> None:
    """Blocks that were taken before came from the least recently used context, however many steps are a jump."""
    model = engine(pool_blocks=22, memory=Opportunistic(aligned=False), max_jump_steps=max_jump_steps)
    with_contexts(model, ("a", 10), ("b", 10))
    model.submit(call("runs", 32, 97), 1 * MS)  # two blocks are free; six more are needed, one each 16 us
    finish(model, 1 * MS + (42 + 40) * US)
    assert model.cache.free_blocks == 0
    model.park("b", True, 1 * MS + (42 + 40) * US)
    finish(model)
    assert cached_blocks(model) == {"a": 7, "b": 7}


def test_low_levels_are_evicted_before_high_ones_and_among_them_larger_ones() -> None:
    model = engine(pool_blocks=64, memory=Opportunistic(shrink=False), priority=Mlfq())
    with_contexts(model, ("a", 1), ("b", 10), ("c", 13))  # 1/64 and 1/16 of the pool: levels 0, 2, 2
    model.submit(call("new", 45 * 16), 1 * MS)
    finish(model)
    assert cached_blocks(model) == {"a": 1, "b": 10, "c": 8}


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
    assert sequence(events) == ["runs", "small 1", "large", "small 2", "late"]
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
    assert sequence(finish(model)) == ["runs", "early", "late"]


def test_a_switch_lets_a_call_that_does_not_fit_begin() -> None:
    model = engine(pool_blocks=100)
    model.submit(call("runs", 16, 640), 0)
    model.advance(26 * US)
    model.submit(call("large", 80 * 16), 30 * US)
    finish(model, 200 * US)
    assert waiting(model, 200 * US) == 1
    model.use(EnginePolicies(priority=Fcfs(), memory=Opportunistic()), 200 * US)
    finish(model, 202 * US)
    assert waiting(model, 202 * US) == 0
    model.use(STOCK, 250 * US)  # what has begun goes on under the engine's own rules
    assert all(end.ok for end in ends(finish(model)).values())


# Pins and chunks


def beside_a_pin(prompt_tokens: int, output_tokens: int = 1) -> EngineModel:
    """Of 60 blocks 10 are "a"'s and pinned, "r" runs in 6 in the end, and "w" asks for so many tokens."""
    model = engine(60, priority=MARS.priority, memory=MARS.memory)
    model.submit(call("a1", 160, program="a"), 0)
    finish(model, 100 * US)
    model.retain("a", 10 * MS, 200 * US)
    model.submit(call("r", 16, 80), 200 * US)
    model.advance(200 * US)
    model.submit(call("w", prompt_tokens, output_tokens), 201 * US)
    model.advance(240 * US)
    return model


def test_a_chunk_shrinks_before_a_pin_is_given_up() -> None:
    """As in the plugin, which is asked for pins only where not even a part may begin."""
    model = beside_a_pin(720)
    assert (waiting(model, 240 * US), set(model.cache.pins())) == (0, {"a"})
    assert ends(finish(model))["w"].ok, "in the end the pin makes room for the rest"


def test_what_would_begin_as_a_whole_waits_for_pins_to_make_room() -> None:
    """A part that is all of its prompt is no smaller chunk: what it lacks is room for its output."""
    model = beside_a_pin(64, 720)
    assert (waiting(model, 240 * US), set(model.cache.pins())) == (0, set())


# Continuum's pins

CONTINUUM = EnginePolicies(priority=TtlFirst(), memory=Lru(keep_pins=True))


def pinned_and_running(policies: EnginePolicies) -> EngineModel:
    """30 blocks: 10 are "a"'s and pinned until 10 ms, "r" runs from 0.2 ms and takes 2 to 17 of the others."""
    model = engine(30, priority=policies.priority, memory=policies.memory)
    model.submit(call("a1", 160, program="a", arrived_at_ns=5), 0)
    finish(model, 100 * US)
    model.retain("a", 10 * MS, 200 * US)
    model.submit(call("r", 16, 250, arrived_at_ns=7), 200 * US)
    model.advance(200 * US)
    return model


@pytest.mark.parametrize(("policies", "kept"), [(STOCK, False), (MARS, False), (CONTINUUM, True)])
def test_only_continuum_lets_a_call_wait_for_pinned_memory(policies: EnginePolicies, kept: bool) -> None:
    model = pinned_and_running(policies)
    model.submit(call("w", 200, 1), 201 * US)
    model.advance(300 * US)
    assert (waiting(model, 300 * US) == 1) == kept
    assert bool(model.cache.pins()) == kept
    assert ends(finish(model))["w"].ok, "and it runs in the end"


def test_whoever_comes_back_to_a_pin_goes_before_an_earlier_program() -> None:
    model = pinned_and_running(CONTINUUM)
    model.submit(call("early", 300, arrived_at_ns=1), 201 * US)
    model.submit(call("a2", 170, program="a", reusable_tokens=160, arrived_at_ns=5), 210 * US)
    assert sequence(finish(model)) == ["r", "a2", "early"]


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
