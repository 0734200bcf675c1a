"""What the engine model does with calls: times, batches, the prefix cache, pins, retraction."""

from dataclasses import replace
from typing import Any

import pytest
from engine_operations import TOY

from controlplane.core.errors import ConfigError
from controlplane.core.events import Event, FirstToken, TurnEnded, TurnSubmitted
from controlplane.lab.sim.engine_model import Call, ContextTooLong, EngineModel

US = 1000


def call(name: str, prompt: int, output: int = 1, program: str = "", **more: Any) -> Call:
    return Call(turn_id=name, program_id=program or name, prompt_tokens=prompt, output_tokens=output, **more)


def engine(pool_blocks: int = 1000, **options: Any) -> EngineModel:
    return EngineModel(TOY, pool_blocks=pool_blocks, **options)


def finish(model: EngineModel) -> list[Event]:
    events: list[Event] = []
    while (wake_ns := model.next_wake_ns()) is not None:
        events += model.advance(wake_ns)
    return events


def ended(events: list[Event]) -> dict[str, TurnEnded]:
    return {event.turn_id: event for event in events if isinstance(event, TurnEnded)}


def first(events: list[Event]) -> dict[str, FirstToken]:
    return {event.turn_id: event for event in events if isinstance(event, FirstToken)}


def test_one_call_takes_its_prefill_and_its_decode_steps() -> None:
    model = engine()
    model.submit(call("a", 100, 5), 7 * US)
    assert model.next_wake_ns() == 7 * US
    submitted, token, end = finish(model)
    assert submitted == TurnSubmitted(
        at_ns=7 * US, program_id="a", turn_id="a", projected_blocks=7, prompt_tokens=100
    )
    prefill_ns = (10 + 100) * US
    assert token == FirstToken(
        at_ns=7 * US + prefill_ns, program_id="a", turn_id="a", prefill_ns=prefill_ns, prompt_tokens=100
    )
    assert end == TurnEnded(
        at_ns=7 * US + prefill_ns + 4 * US,
        program_id="a",
        turn_id="a",
        prompt_tokens=100,
        output_tokens=5,
        service_ns=prefill_ns + 4 * US,
    )
    assert model.next_wake_ns() is None


def test_calls_submitted_at_one_instant_share_a_prefill_step() -> None:
    model = engine()
    model.submit(call("a", 100), 0)
    model.submit(call("b", 50), 0)
    tokens = first(finish(model))
    assert tokens["a"].at_ns == tokens["b"].at_ns == (10 + 150) * US


def test_a_long_prompt_is_prefilled_in_chunks_and_decoding_waits_for_it() -> None:
    model = engine(chunk_tokens=64)
    model.submit(call("a", 16, 100), 0)
    model.advance(0)
    model.submit(call("b", 160), 1 * US)
    events = finish(model)
    start_ns = (10 + 16) * US  # of b's prefill; a decodes after it
    assert first(events)["b"].at_ns == start_ns + (3 * 10 + 160) * US
    assert ended(events)["a"].at_ns == first(events)["b"].at_ns + 99 * US


def test_a_submit_cuts_a_decode_jump_at_the_next_step() -> None:
    model = engine()
    model.submit(call("a", 100, 1000), 0)
    model.advance(110 * US)
    assert model.next_wake_ns() == (110 + 999) * US
    model.submit(call("b", 100), 200 * US + 1)
    assert model.next_wake_ns() == 201 * US
    events = finish(model)
    assert first(events)["b"].at_ns == (201 + 110) * US
    assert ended(events)["a"].at_ns == (110 + 999 + 110) * US


def test_output_can_be_read_while_it_is_produced() -> None:
    model = engine()
    model.submit(call("a", 100, 50), 0)
    assert model.produced_tokens("a") == 0
    model.advance(110 * US)
    assert model.produced_tokens("a") == 1
    model.advance(130 * US + 999)
    assert model.produced_tokens("a") == 21
    finish(model)
    assert model.produced_tokens("a") == 0


def test_a_program_reuses_whole_blocks_of_its_context() -> None:
    model = engine()
    model.submit(call("t1", 100, 21, program="p"), 0)
    finish(model)
    model.submit(call("t2", 300, program="p", reusable_tokens=121), 10**9)
    model.submit(call("o", 300, program="other", reusable_tokens=121), 10**9)
    end = ended(finish(model))
    assert end["t2"].cached_tokens == 112  # 120 have KV: seven blocks of 16
    assert end["o"].cached_tokens == 0


def test_at_least_one_prompt_token_is_computed() -> None:
    model = engine()
    model.submit(call("t1", 64, 1, program="p"), 0)
    finish(model)
    model.submit(call("t2", 64, 1, program="p", reusable_tokens=64), 10**9)
    assert ended(finish(model))["t2"].cached_tokens == 48


def test_a_shared_prefix_is_resident_once() -> None:
    model = engine()
    model.submit(call("a", 160, prefix_group="g", prefix_tokens=100), 0)
    model.submit(call("b", 160, prefix_group="g", prefix_tokens=100), 0)
    both = ended(finish(model))
    assert both["a"].cached_tokens == both["b"].cached_tokens == 0
    sample = model.pool_sample(10**9)
    assert sample.free_blocks == 1000 - 6 - 4 - 4
    assert sample.evictable_blocks == 8  # the prefix stays while contexts that begin with it do
    model.submit(call("c", 160, prefix_group="g", prefix_tokens=100), 10**9)
    assert ended(finish(model))["c"].cached_tokens == 96
    for program in "abc":
        model.discard(program)
    sample = model.pool_sample(2 * 10**9)
    assert (sample.free_blocks, sample.evictable_blocks) == (1000 - 6, 6)


def test_the_least_recently_used_context_is_evicted() -> None:
    model = engine(pool_blocks=30)
    for i, name in enumerate("ab"):
        model.submit(call(name + "1", 160, program=name), i)
        finish(model)
    model.submit(call("c1", 240, program="c"), 10**6)
    finish(model)
    model.submit(call("b2", 161, program="b", reusable_tokens=160), 2 * 10**6)
    assert ended(finish(model))["b2"].cached_tokens == 160
    model.submit(call("a2", 161, program="a", reusable_tokens=160), 3 * 10**6)
    assert ended(finish(model))["a2"].cached_tokens < 160


def late_engine() -> EngineModel:
    return EngineModel(replace(TOY, results_late=True), pool_blocks=1000)


def test_late_results_cost_a_turn_one_step_more() -> None:
    model = late_engine()
    model.submit(call("a", 100, 5, program="a"), 0)
    events = finish(model)
    assert first(events)["a"].at_ns == 111 * US  # prefilled after 110
    assert ended(events)["a"].at_ns == 115 * US  # its last token was computed after 114
    assert ended(events)["a"].output_tokens == 5
    model.submit(call("a2", 200, program="a", reusable_tokens=105), 200 * US)
    assert ended(finish(model))["a2"].cached_tokens == 96  # 104 tokens have KV, the last one has none


def test_of_two_turns_each_learns_when_the_other_s_step_is_done() -> None:
    model = late_engine()
    model.submit(call("a", 100, 5), 0)
    model.advance(111_500)
    model.submit(call("b", 50, 1), 111_500)  # prefilled from 112 to 172
    events = finish(model)
    assert first(events)["b"].at_ns == ended(events)["b"].at_ns == 173 * US
    assert ended(events)["a"].at_ns == 175 * US


def test_a_prefill_step_tells_who_finished_before_it() -> None:
    model = late_engine()
    model.submit(call("a", 100, 5), 0)
    model.advance(113_500)
    model.submit(call("b", 50, 2), 113_500)  # prefilled from 114, when a has its last token, to 174
    events = finish(model)
    assert ended(events)["a"].at_ns == 174 * US
    assert first(events)["b"].at_ns == 175 * US
    assert ended(events)["b"].at_ns == 176 * US


def test_eviction_frees_whole_pieces_the_last_ones_first() -> None:
    """As a radix tree's leaves: the chunk of a prompt, its rest, the reply, then what later turns added."""
    model = engine(pool_blocks=30, chunk_tokens=96)
    model.submit(call("a1", 160, 33, program="a"), 0)
    finish(model)
    model.submit(call("a2", 224, 1, program="a", reusable_tokens=192), 10**6)
    finish(model)
    node = model.cache.find("a")
    assert node is not None
    assert (node.ends, node.blocks) == ([6, 10, 12], 14)
    assert model.cache.evict("a", 1) == 2
    assert model.cache.evict("a", 3) == 6
    assert (node.ends, node.blocks) == ([], 6)
    assert model.cache.evict("a", 1) == 6
    assert model.cache.free_blocks == 30
    assert model.cache.evict("a", 1) == 0


def test_a_pin_keeps_a_context_until_it_expires() -> None:
    model = engine(pool_blocks=30)
    model.submit(call("a1", 160, program="a"), 0)
    finish(model)
    assert "nothing of it" in model.retain("nobody", 10**9, 10**6)
    assert "over" in model.retain("a", 10**6, 10**6)
    assert model.retain("a", 10**9, 10**6) == ""
    assert model.cache.pins() == {"a": 10**9}
    assert model.pool_sample(10**6).retained_blocks == 10
    for i in range(3):
        model.submit(call(f"f{i}", 250), 2 * 10**6 + i)
        finish(model)
    model.submit(call("a2", 161, program="a", reusable_tokens=160), 10**8)
    assert ended(finish(model))["a2"].cached_tokens == 160
    assert model.cache.pins() == {}  # use ends a pin
    assert model.retain("a", 10**9, 2 * 10**8) == ""
    model.submit(call("late", 400), 10**9)
    finish(model)
    assert model.cache.pins() == {}
    model.submit(call("a3", 177, program="a", reusable_tokens=161), 2 * 10**9)
    assert ended(finish(model))["a3"].cached_tokens < 160


def test_pins_take_no_more_than_their_budget() -> None:
    model = engine(pool_blocks=60)  # half of it is for pins
    for i, name in enumerate("abc"):
        model.submit(call(name, 16 * 15, program=name, prefix_group="all", prefix_tokens=16 * 4), i)
        finish(model)
    assert model.retain("a", 10**9, 10**6) == ""
    assert model.retain("b", 10**9, 10**6) == ""  # 15 blocks each, the shared prefix counted for both
    assert model.cache.budgeted_blocks == 30
    assert "budget" in model.retain("c", 10**9, 10**6)
    assert model.retain("b", 2 * 10**9, 10**6) == "", "a pin may be renewed"
    assert model.release("a", 10**6)
    assert model.retain("c", 10**9, 10**6) == ""
    assert set(model.cache.pins()) == {"b", "c"}
    assert model.discard("b", 10**6) == 11
    assert model.cache.budgeted_blocks == 15


def test_a_waiting_call_starts_when_a_pin_expires() -> None:
    model = engine(pool_blocks=30)
    model.submit(call("a", 160), 0)
    finish(model)
    model.retain("a", 10_000 * US, 200 * US)
    model.submit(call("r", 16, 250), 200 * US)
    model.advance(200 * US)
    model.submit(call("w", 300, 20), 201 * US)
    model.advance(300 * US)
    assert model.pool_sample(300 * US).turns_waiting == 1
    model.release("a", 350 * US)
    model.advance(400 * US)
    assert model.pool_sample(400 * US).turns_waiting == 1  # r's own growth is in the way
    assert ended(finish(model))["w"].ok


def test_pins_are_reclaimed_before_a_running_call_is_retracted() -> None:
    model = engine(pool_blocks=30, pin_budget_ratio=1)
    for i, name in enumerate("ab"):
        model.submit(call(name, 160), i)
        finish(model)
    assert model.retain("a", 10**9, 10**6) == ""
    assert model.retain("b", 10**8, 10**6) == ""
    model.submit(call("r", 100, 120), 2 * 10**6)
    finish(model)
    assert set(model.cache.pins()) == {"a"}  # b's would have expired first
    assert model.pool_sample(10**7).retractions == 0


def test_nothing_runs_but_pins_fill_the_pool() -> None:
    model = engine(pool_blocks=12, pin_budget_ratio=1)
    model.submit(call("a", 160), 0)
    finish(model)
    assert model.retain("a", 10**12, 10**6) == ""
    model.submit(call("b", 160), 2 * 10**6)
    assert ended(finish(model))["b"].ok


def test_the_newest_call_is_retracted_and_ends_later_with_all_its_output() -> None:
    model = engine(pool_blocks=200)
    model.submit(call("old", 100, 2500), 0)
    events = model.advance(900 * US)  # the reserve for old's output has decayed by now
    model.submit(call("new", 100, 1500), 900 * US)
    events += finish(model)
    assert model.pool_sample(10**9).retractions == 1
    ends = ended(events)
    assert {name: end.output_tokens for name, end in ends.items()} == {"old": 2500, "new": 1500}
    assert ends["old"].at_ns < ends["new"].at_ns
    assert ends["new"].service_ns < ends["new"].at_ns - 900 * US  # it waited between
    assert sum(isinstance(event, FirstToken) for event in events) == 2
    retractions, recomputed_tokens = model.redone
    assert retractions == 1
    assert 0 < recomputed_tokens < 100 + 1500  # what it had when it was sent back


def test_aborts() -> None:
    model = engine(max_running=1)
    model.submit(call("runs", 100, 100), 0)
    model.advance(0)
    model.submit(call("waits", 100, 100), 1 * US)
    assert model.abort("waits", 50 * US)
    assert not model.abort("waits", 50 * US)
    assert not model.abort("unknown", 50 * US)
    waits = ended(model.drain())["waits"]
    assert (waits.ok, waits.at_ns, waits.output_tokens) == (False, 50 * US, 0)
    model.advance(110 * US)
    assert model.abort("runs", 120 * US + 1)
    runs = ended(finish(model))["runs"]
    assert (runs.ok, runs.at_ns, runs.output_tokens) == (False, 121 * US, 12)
    assert model.pool_sample(10**9).turns_running == 0


@pytest.mark.parametrize(("prompt", "output"), [(160, 1), (150, 11), (1, 160)])
def test_a_context_that_fits_nowhere_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ContextTooLong, match=f"prompt of {prompt} tokens .* limit of 160 tokens"):
        engine(pool_blocks=10).submit(call("a", prompt, output), 0)
    with pytest.raises(ContextTooLong, match="limit of 160"):
        engine(max_context_tokens=160).submit(call("a", prompt, output), 0)


def test_bad_calls_and_sizes_are_refused() -> None:
    model = engine()
    for bad in (call("a", 0), call("a", 1, 0)):
        with pytest.raises(ConfigError, match="got 0"):
            model.submit(bad, 0)
    model.submit(call("a", 10), 0)
    with pytest.raises(ConfigError, match="'a' is open already"):
        model.submit(call("a", 10), 0)
    with pytest.raises(ConfigError, match="pool_blocks"):
        engine(pool_blocks=0)
    with pytest.raises(ConfigError, match="chunk_tokens"):
        engine(chunk_tokens=15)
