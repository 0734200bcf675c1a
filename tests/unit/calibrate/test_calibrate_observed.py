"""Step times are found again from turns that an engine of known step times served side by side."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import Event, FirstToken, TurnEnded, TurnSubmitted
from controlplane.lab.calibrate.observed import Served, StepCosts, fit_served
from controlplane.lab.sim.engine_model import Call, EngineModel
from controlplane.lab.sim.profile import FittedProfile, fitted

CHUNK = 2048
MADE = FittedProfile(
    name="made",
    source="a test",
    step_overhead_us=7000,
    prefill_token_us=25,
    attention_ps=1500,
    attends_anew=False,
    decode_base_us=6000,
    decode_sequence_us=40,
    decode_context_ns=60,
    kv_pool_tokens=1_000_000,
    max_context_tokens=100_000,
)


@cache
def served(turns: int = 60, every_ns: int = 400_000_000, **changed: Any) -> tuple[Served, ...]:
    """Turns of many sizes, several at a time."""
    profile = msgspec.structs.replace(MADE, **changed)
    engine = EngineModel(fitted(profile), pool_blocks=60_000, chunk_tokens=CHUNK)
    events: list[Event] = []
    for number in range(turns):
        at_ns = number * every_ns
        while (wake_ns := engine.next_wake_ns()) is not None and wake_ns <= at_ns:
            events += engine.advance(wake_ns)
        prompt = 200 + (number * 977) % 6000
        call = Call(
            turn_id=str(number),
            program_id=str(number),
            prompt_tokens=prompt,
            output_tokens=50 + (number * 53) % 300,
        )
        engine.submit(call, at_ns)
    while (wake_ns := engine.next_wake_ns()) is not None:
        events += engine.advance(wake_ns)
    told: dict[str, dict[type, Any]] = {}
    for event in events:
        if isinstance(event, TurnSubmitted | FirstToken | TurnEnded):
            told.setdefault(event.turn_id, {})[type(event)] = event
    return tuple(_served(each) for each in told.values())


def _served(told: dict[type, Any]) -> Served:
    submitted, first, ended = told[TurnSubmitted], told[FirstToken], told[TurnEnded]
    scheduled_ns = submitted.at_ns + first.launch_delay_ns
    return Served(
        engine="n/engine",
        scheduled_ns=scheduled_ns,
        first_token_ns=scheduled_ns + first.prefill_ns,
        ended_ns=ended.at_ns,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        output_tokens=ended.output_tokens,
    )


def prefill_s(costs: StepCosts, tokens: int) -> float:
    return costs.overhead + costs.token * tokens + costs.attention * tokens**2


def decode_s(costs: StepCosts, batch: int, context: int) -> float:
    return costs.base + costs.sequence * batch + costs.context * context


def test_step_times_are_found_again() -> None:
    costs = fit_served(served(), CHUNK)
    assert prefill_s(costs, 1500) == pytest.approx(0.007 + 1500 * 25e-6 + 1500**2 * 1.5e-9, rel=0.05)
    assert decode_s(costs, 5, 20_000) == pytest.approx(0.006 + 5 * 40e-6 + 20_000 * 60e-9, rel=0.03)
    assert costs.prefill_error_ratio < 0.05
    assert costs.decode_error_ratio < 0.02
    assert not costs.attends_anew


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pause_ns", [0, 20_000_000, 500_000_000])
def test_turns_one_after_another_do_not_tell_what_one_costs_another(seed: int, pause_ns: int) -> None:
    """A machine's pauses must not decide whether eight at a time take as long as one, or eight times as long."""
    pauses = random.Random(seed)
    turns = [
        replace(turn, ended_ns=turn.ended_ns + round(pauses.expovariate(1) * pause_ns))
        for turn in served(every_ns=20_000_000_000)
    ]
    costs = fit_served(turns, CHUNK)
    assert costs.mean_batch == pytest.approx(1)
    assert not costs.has_sequence
    assert costs.sequence == 0
    assert decode_s(costs, 1, 3000) == pytest.approx(0.006 + 40e-6 + 3000 * 60e-9, rel=0.02 + pause_ns / 1e9)
    assert costs.base > 0.8 * decode_s(costs, 1, 3000)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pause_ns", [0, 20_000_000, 500_000_000])
def test_nor_do_turns_that_are_all_alike(seed: int, pause_ns: int) -> None:
    """As a load generator's: all of a step might be its context's as well."""
    pauses = random.Random(seed)
    one = served(turns=1)[0]
    turns = [
        replace(
            one,
            scheduled_ns=one.scheduled_ns + number * 20_000_000_000,
            first_token_ns=one.first_token_ns + number * 20_000_000_000,
            ended_ns=one.ended_ns + number * 20_000_000_000 + round(pauses.expovariate(1) * pause_ns),
            prompt_tokens=3000 + number % 7,
        )
        for number in range(60)
    ]
    costs = fit_served(turns, CHUNK)
    assert (costs.has_sequence, costs.sequence, costs.context) == (False, 0, 0)
    assert costs.base > 0


def test_a_few_turns_beside_each_other_tell_it_if_the_machine_is_quiet() -> None:
    alone, together = served(every_ns=20_000_000_000), served(turns=12)
    assert fit_served([*alone, *(replace(turn, engine="n/other") for turn in together)], CHUNK).has_sequence


def test_an_engine_that_attends_anew_is_known_by_its_times() -> None:
    assert fit_served(served(attends_anew=True, attention_ps=6000), CHUNK).attends_anew


def test_a_turn_that_the_machine_held_up_counts_for_little() -> None:
    turns = served()
    late = replace(turns[30], first_token_ns=turns[30].first_token_ns + 3_000_000_000)
    late = replace(late, ended_ns=max(late.ended_ns, late.first_token_ns))
    costs = fit_served([*turns[:30], late, *turns[31:]], CHUNK)
    assert prefill_s(costs, 1500) == pytest.approx(prefill_s(fit_served(turns, CHUNK), 1500), rel=0.1)


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match="too little was served to tell step times from: 2 prefills"):
        fit_served(served(turns=2), CHUNK)


def test_prefills_that_were_broken_off_for_decoding_bend_no_step_times() -> None:
    """They look as if they had taken all of the time, which no others do: they are left out of both fits."""
    turns = served()
    longest = sorted(turns, key=lambda turn: turn.first_token_ns - turn.scheduled_ns)[-4:]
    broken = [_later(turn) if turn in longest else turn for turn in turns]
    plain, costs = fit_served(turns, CHUNK), fit_served(broken, CHUNK)
    assert prefill_s(costs, 4000) == pytest.approx(prefill_s(plain, 4000), rel=0.03)
    assert decode_s(costs, 4, 10_000) == pytest.approx(decode_s(plain, 4, 10_000), rel=0.03)


def _later(turn: Served) -> Served:
    late_ns = 2 * (turn.first_token_ns - turn.scheduled_ns)
    return replace(turn, first_token_ns=turn.first_token_ns + late_ns, ended_ns=turn.ended_ns + late_ns)
