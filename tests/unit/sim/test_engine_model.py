"""What the engine model does with calls: times, batches, the prefix cache, pins, retraction."""

from dataclasses import replace

import pytest
from engine_operations import TOY
from toy_engine import US, call, ends, engine, finish, first, run

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import FirstToken, TurnEnded, TurnSubmitted
from controlplane.lab.sim.engine_model import ContextTooLong, EngineModel


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


def test_a_long_prompt_is_prefilled_in_chunks_and_decoding_waits_for_it() -> None:
    model = engine(chunk_tokens=64)
    model.submit(call("a", 16, 100), 0)
    model.advance(0)
    model.submit(call("b", 160), 1 * US)
    events = finish(model)
    start_ns = (10 + 16) * US  # of b's prefill; a decodes after it
    assert first(events)["b"].at_ns == start_ns + (3 * 10 + 160) * US
    assert ends(events)["a"].at_ns == first(events)["b"].at_ns + 99 * US


def test_a_submit_cuts_a_decode_jump_and_output_is_read_meanwhile() -> None:
    model = engine()
    model.submit(call("a", 100, 1000), 0)
    model.advance(110 * US)
    assert (model.produced_tokens("a"), model.next_wake_ns()) == (1, (110 + 999) * US)
    model.advance(130 * US + 999)
    assert model.produced_tokens("a") == 21
    model.submit(call("b", 100), 200 * US + 1)
    model.submit(call("c", 50), 200 * US + 2)
    assert model.next_wake_ns() == 201 * US
    events = finish(model)
    assert first(events)["b"].at_ns == first(events)["c"].at_ns == (201 + 160) * US, "they share a step"
    assert ends(events)["a"].at_ns == (110 + 999 + 160) * US
    assert model.produced_tokens("a") == 0


def test_a_program_reuses_whole_blocks_of_its_context() -> None:
    model = engine()
    model.submit(call("t1", 100, 21, program="p"), 0)
    finish(model)
    model.submit(call("t2", 300, program="p", reusable_tokens=121), 10**9)
    model.submit(call("o", 300, program="other", reusable_tokens=121), 10**9)
    end = ends(finish(model))
    assert end["t2"].cached_tokens == 112  # 120 have KV: seven blocks of 16
    assert end["o"].cached_tokens == 0


def test_a_shared_prefix_is_resident_once() -> None:
    model = engine()
    model.submit(call("a", 160, prefix_group="g", prefix_tokens=100), 0)
    model.submit(call("b", 160, prefix_group="g", prefix_tokens=100), 0)
    both = ends(finish(model))
    assert both["a"].cached_tokens == both["b"].cached_tokens == 0
    sample = model.pool_sample(10**9)
    assert sample.free_blocks == 1000 - 6 - 4 - 4
    assert sample.evictable_blocks == 8  # the prefix stays while contexts that begin with it do
    assert run(model, "c", 160, 10**9, prefix_group="g", prefix_tokens=100).cached_tokens == 96
    for program in "abc":
        model.discard(program)
    sample = model.pool_sample(2 * 10**9)
    assert (sample.free_blocks, sample.evictable_blocks) == (1000 - 6, 6)


def test_late_results_cost_a_turn_one_step_more() -> None:
    model = EngineModel(replace(TOY, results_late=True), pool_blocks=1000)
    model.submit(call("a", 100, 5, program="a"), 0)
    events = finish(model)
    assert first(events)["a"].at_ns == 111 * US  # prefilled after 110
    assert ends(events)["a"].at_ns == 115 * US  # its last token was computed after 114
    assert ends(events)["a"].output_tokens == 5
    assert (
        run(model, "a2", 200, 200 * US, program="a", reusable_tokens=105).cached_tokens == 96
    )  # 104 tokens have KV, the last one has none


def test_a_prefill_step_tells_who_finished_before_it() -> None:
    model = EngineModel(replace(TOY, results_late=True), pool_blocks=1000)
    model.submit(call("a", 100, 5), 0)
    model.advance(113_500)
    model.submit(call("b", 50, 2), 113_500)  # prefilled from 114, when a has its last token, to 174
    events = finish(model)
    assert ends(events)["a"].at_ns == 174 * US
    assert first(events)["b"].at_ns == 175 * US
    assert ends(events)["b"].at_ns == 176 * US


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


def test_without_pins_the_least_recently_used_context_is_evicted() -> None:
    model = engine(pool_blocks=30)
    for at_ns, (name, tokens) in enumerate({"a": 160, "b": 160, "c": 240}.items()):
        run(model, name, tokens, at_ns)
    assert run(model, "b2", 161, 2 * 10**6, program="b", reusable_tokens=160).cached_tokens == 160
    assert run(model, "a2", 161, 3 * 10**6, program="a", reusable_tokens=160).cached_tokens < 160


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
    assert run(model, "a2", 161, 10**8, program="a", reusable_tokens=160).cached_tokens == 160
    assert model.cache.pins() == {}  # use ends a pin
    assert model.retain("a", 10**9, 2 * 10**8) == ""
    model.submit(call("late", 400), 10**9)
    finish(model)
    assert model.cache.pins() == {}
    assert run(model, "a3", 177, 2 * 10**9, program="a", reusable_tokens=161).cached_tokens < 160


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


@pytest.mark.parametrize(("pool_blocks", "call_of"), [(30, (100, 120)), (22, (160, 1))])
def test_pins_are_given_up_before_a_call_is_retracted_or_none_can_run(
    pool_blocks: int, call_of: tuple[int, int]
) -> None:
    model = engine(pool_blocks=pool_blocks)
    model._pool.pin_budget_ratio = 1.0
    for name, until_ns in (("a", 10**9), ("b", 10**8)):
        run(model, name, 160)
        assert model.retain(name, until_ns, 10**6) == ""
    assert run(model, "r", *call_of[:1], 2 * 10**6, output=call_of[1]).ok
    assert set(model.cache.pins()) == {"a"}  # b's would have expired first
    assert model.pool_sample(10**7).retractions == 0


def test_the_newest_call_is_retracted_and_ends_later_with_all_its_output() -> None:
    model = engine(pool_blocks=200)
    model.submit(call("old", 100, 2500), 0)
    events = model.advance(900 * US)  # the reserve for old's output has decayed by now
    model.submit(call("new", 100, 1500), 900 * US)
    events += finish(model)
    assert model.pool_sample(10**9).retractions == 1
    old, new = (ends(events)[name] for name in ("old", "new"))
    assert (old.output_tokens, new.output_tokens) == (2500, 1500)
    assert old.at_ns < new.at_ns
    assert new.service_ns < new.at_ns - 900 * US  # it waited between
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
    waits = ends(model.drain())["waits"]
    assert (waits.ok, waits.at_ns, waits.output_tokens) == (False, 50 * US, 0)
    model.advance(110 * US)
    assert model.abort("runs", 120 * US + 1)
    runs = ends(finish(model))["runs"]
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


def test_what_the_pools_blocks_were_used_for() -> None:
    """A pool of 20 blocks of 16 tokens, in block-seconds."""
    model, us = engine(pool_blocks=20), 1e-6
    run(model, "a1", 160, 100 * US, program="a")
    used = model.space_time
    # 100 us of nothing; a prefill of 170 us in 10 blocks, 10 stay free; then "a" rests in its blocks
    assert used.unused == pytest.approx(20 * 100 * us + 10 * 170 * us)
    assert used.prefill == pytest.approx(10 * 170 * us)
    assert (used.recompute, used.decode) == (0, 0)
    model.discard("a", 400 * US)
    assert used.caching == pytest.approx(10 * 130 * us)
    run(model, "a2", 192, 400 * US, program="a", reusable_tokens=160)
    # 12 blocks for 202 us, of whose 192 tokens 160 had been there
    assert used.recompute == pytest.approx(12 * 202 * us * 160 / 192)
    assert used.prefill == pytest.approx(10 * 170 * us + 12 * 202 * us * 32 / 192)
    assert model.redone == (0, 160)
