"""Coefficients are found again from times that they made, whichever way the engine attends."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError
from controlplane.lab.calibrate.fit import (
    Chat,
    Decode,
    DecodeCost,
    Prefill,
    PrefillCost,
    fit_decode,
    fit_prefill,
    turn_overhead,
)
from controlplane.lab.calibrate.measure import Engine, Measured, Plan
from controlplane.lab.calibrate.profile import fit, to_profile
from controlplane.lab.sim.profile import load_profile

CHUNK = 1024
REQUESTS = [(0, 250), (0, 500), (0, 1000), (0, 4000), (0, 8000), (3000, 250), (7000, 1000)]
STEPS = [(batch, context) for batch in (1, 2, 8) for context in (1000, 4000)]
costs = st.floats(1e-6, 1e-2)


def prefills(cost: PrefillCost) -> list[Prefill]:
    return [Prefill(cached=s, new=n, seconds=cost.of(s, n, CHUNK)) for s, n in REQUESTS]


def decodes(cost: DecodeCost) -> list[Decode]:
    return [Decode(batch=b, context=n, seconds=cost.of(b, n)) for b, n in STEPS]


def made(anew: bool, attention: float = 3e-8) -> PrefillCost:
    return PrefillCost(overhead=0.02, token=2e-4, attention=attention, attends_anew=anew, worst_error_ratio=0.0)


@pytest.mark.parametrize("anew", [False, True])
def test_both_ways_of_attending_are_told_apart(anew: bool) -> None:
    found = fit_prefill(prefills(made(anew)), CHUNK)
    assert found.attends_anew is anew
    assert (found.overhead, found.token, found.attention) == pytest.approx((0.02, 2e-4, 3e-8), rel=1e-3)
    assert found.worst_error_ratio < 1e-3


def test_a_chunk_that_attends_anew_pays_for_the_whole_sequence() -> None:
    """8 tokens in chunks of 4 behind 4: the second chunk ends at 12."""
    cost = PrefillCost(overhead=1.0, token=10.0, attention=100.0, attends_anew=True, worst_error_ratio=0.0)
    assert cost.of(4, 8, 4) == 2 * 1.0 + 8 * 10.0 + 100.0 * (8 * 8 + 12 * 12)
    stock = PrefillCost(overhead=1.0, token=10.0, attention=100.0, attends_anew=False, worst_error_ratio=0.0)
    assert stock.of(4, 8, 4) == 2 * 1.0 + 8 * 10.0 + 100.0 * (12 * 12 - 4 * 4)


@given(base=costs, sequence=costs, context=st.floats(1e-9, 1e-6))
def test_decode_coefficients_are_found_again(base: float, sequence: float, context: float) -> None:
    true = DecodeCost(base=base, sequence=sequence, context=context, worst_error_ratio=0.0)
    found = fit_decode(decodes(true))
    for batch, tokens in [*STEPS, (4, 2000)]:
        assert found.of(batch, tokens) == pytest.approx(true.of(batch, tokens), rel=1e-3)


@given(seconds=st.lists(st.floats(0.001, 10), min_size=len(REQUESTS), max_size=len(REQUESTS)))
def test_no_coefficient_is_below_zero_whatever_was_measured(seconds: list[float]) -> None:
    noisy = [Prefill(cached=s, new=n, seconds=t) for (s, n), t in zip(REQUESTS, seconds, strict=True)]
    found = fit_prefill(noisy, CHUNK)
    assert min(found.overhead, found.token, found.attention) >= 0
    assert found.worst_error_ratio >= 0


def test_what_a_chat_takes_beside_its_prefill_is_the_turn_s_overhead() -> None:
    cost = made(True)
    took = [Chat(tokens=n, seconds=cost.of(0, n, CHUNK) + beside) for n, beside in ((90, 0.04), (400, 0.05))]

    def prefill_s(cached: int, new: int) -> float:
        return cost.of(cached, new, CHUNK)

    assert turn_overhead(took, prefill_s) == pytest.approx(0.045)
    assert turn_overhead([Chat(tokens=400, seconds=1e-3)], prefill_s) == 0, "noise makes no time less than none"
    assert turn_overhead([], prefill_s) == 0


def test_a_late_result_is_a_decode_step_that_the_prefill_did_not_take() -> None:
    prompt, late = measured(True), measured(True, late=True)
    assert fit(late).prefill.of(0, 1000, CHUNK) == pytest.approx(fit(prompt).prefill.of(0, 1000, CHUNK), rel=1e-3)
    assert fit(late).first_token_s(0, 1000) == pytest.approx(late.prefill[2].seconds, rel=1e-3)
    assert to_profile(late, fit(late), "late").turn_overhead_us == pytest.approx(30_000, rel=1e-2)
    assert to_profile(late, fit(late), "late").results_late
    assert not to_profile(prompt, fit(prompt), "prompt").results_late


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefill: expected four"):
        fit_prefill(prefills(made(True))[:3], CHUNK)
    with pytest.raises(ConfigError, match="decode: expected four"):
        fit_decode([])


@pytest.mark.parametrize(
    ("room", "prefill", "cached", "contexts", "chats"),
    [
        (4128, (250, 500, 1000, 2000, 4000), ((3000, 250), (3000, 1000)), (500, 1333), (100, 400)),
        (928, (50, 100, 200, 400), ((400, 200),), (100, 266), (100,)),
        (100_000, Plan().prefill, Plan().cached, Plan().contexts, Plan().chats),
    ],
)
def test_what_does_not_fit_the_engine_is_not_measured(
    room: int, prefill: object, cached: object, contexts: object, chats: object
) -> None:
    plan = Plan().within(room)
    assert (plan.prefill, plan.cached, plan.contexts, plan.chats) == (prefill, cached, contexts, chats)


def measured(anew: bool, *, late: bool = False) -> Measured:
    """Of an engine whose costs are known; ``late``: a request for one token takes a decode step, too."""
    engine = Engine(
        version="1", model="m", chunk_tokens=CHUNK, pool_tokens=16_000, context_tokens=9000, results_late=late
    )
    decode = DecodeCost(base=0.005, sequence=1e-3, context=1e-7, worst_error_ratio=0.0)
    took = [
        replace(one, seconds=one.seconds + late * decode.of(1, one.cached + one.new))
        for one in prefills(made(anew))
    ]
    chat = Chat(tokens=500, seconds=made(anew).of(0, 500, CHUNK) + late * decode.of(1, 500) + 0.03)
    return Measured(engine=engine, prefill=took, decode=decodes(decode), chats=[chat])


@pytest.mark.parametrize("anew", [False, True])
def test_the_profile_takes_the_time_that_was_measured(anew: bool, tmp_path: Path) -> None:
    found = measured(anew)
    written = to_profile(found, fit(found), "mine", kv_bytes_per_token=6144)
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(written))
    profile = load_profile(path)
    assert profile.kv_bytes_per_token == 6144
    assert profile.turn_overhead_ns == pytest.approx(30e6, rel=1e-3)
    assert (profile.kv_pool_tokens, profile.max_context_tokens) == (16_000, 9000)
    for cached, new in REQUESTS:
        total_ns, start = 0, cached
        while start < cached + new:
            tokens = min(CHUNK, cached + new - start)
            total_ns += profile.step_overhead_ns + profile.prefill_ns(start, tokens)
            start += tokens
        assert total_ns / 1e9 == pytest.approx(made(anew).of(cached, new, CHUNK), rel=0.02)
    assert profile.decode_ps(2, 8000) / 1e12 == pytest.approx(0.005 + 2e-3 + 8e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"attends_anew": "yes"}, "attends_anew"),
        ({"prefill_token_us": -1}, "prefill_token_us"),
        ({"kv_pool_tokens": 0}, "kv_pool_tokens"),
        ({"prefill_token_us": 0, "attention_ps": 0}, "prefill_token_us"),  # steps that take no time
        ({"decode_base_us": 0, "decode_sequence_us": 0, "decode_context_ns": 0}, "decode_base_us"),
    ],
)
def test_a_fitted_profile_that_makes_no_sense_is_refused(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    data = json.loads(msgspec.json.encode(to_profile(measured(False), fit(measured(False)), "mine")))
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data | change))
    with pytest.raises(ConfigError, match=told):
        load_profile(path)
