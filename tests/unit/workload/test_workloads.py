"""Scaling, synthetic workloads and arrivals."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.agentperf_like import PROMPT_TOKENS
from controlplane.lab.workload.arrivals import (
    Arrival,
    Burst,
    Closed,
    Poisson,
    arrival_times_ns,
    at_rate,
    parse_arrival,
    times_ns,
)
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.synthetic import WORKLOADS, synthesize
from controlplane.lab.workload.trace import ProgramTrace, Turn, reusable_tokens

FACTORS = st.floats(0.001, 10)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=8),
    tokens=FACTORS,
    outputs=FACTORS,
)
def test_scaling_keeps_growth_and_at_least_one_token(
    sizes: list[tuple[int, int]], tokens: float, outputs: float
) -> None:
    turns = tuple(Turn(input_tokens=i, output_tokens=o, tool="t", tool_ms=8.0) for i, o in sizes)
    program = ProgramTrace(program_id="p", source="s", turns=turns)
    scaled = Scale(tokens=tokens, outputs=outputs, tools=0.5).apply_program(program).turns
    assert len(scaled) == len(turns)
    assert all(t.input_tokens >= 1 and t.output_tokens >= 1 and t.tool_ms == 4.0 for t in scaled)
    for k in range(1, len(turns)):
        if reusable_tokens(turns[k - 1], turns[k]):
            assert reusable_tokens(scaled[k - 1], scaled[k]) > 0


def test_repeated_turns_go_on_from_the_context_that_was_left_and_end_at_the_same_one() -> None:
    turns = (
        Turn(input_tokens=300, output_tokens=60, tool="t", tool_ms=8.0, cached_prefix_tokens=100),
        Turn(input_tokens=420, output_tokens=180),
    )
    program = ProgramTrace(program_id="p", source="s", turns=turns)
    repeated = Scale(turns=3).apply_program(program).turns
    assert [(turn.input_tokens, turn.output_tokens) for turn in repeated] == [
        (100, 20),
        (140, 60),
        (300, 20),
        (340, 60),
        (500, 20),
        (540, 60),
    ]
    assert [turn.tool_ms for turn in repeated] == [8.0, None] * 3
    assert all(turn.cached_prefix_tokens is None for turn in repeated)
    assert all(reusable_tokens(before, turn) for before, turn in pairwise(repeated))
    assert str(Scale(turns=3)) == "tokens x1, outputs x1, tools x1, turns x3"
    with pytest.raises(ConfigError, match=r"scale_turns"):
        Scale(turns=0)


def test_a_groups_common_prompt_is_scaled_with_its_prompts() -> None:
    programs = Scale(tokens=0.1).apply(synthesize("rollouts-like-4", programs=8)).programs
    assert all(each.shared_tokens == each.turns[0].input_tokens < 1000 for each in programs)


def test_a_scale_of_one_changes_nothing_and_a_bad_one_is_refused() -> None:
    trace = synthesize("bfcl-v4", programs=3)
    assert Scale().apply(trace) is trace
    assert str(Scale(tokens=0.05, outputs=0.1)) == "tokens x0.05, outputs x0.1, tools x1"
    with pytest.raises(ConfigError, match=r"0 < scale_tokens <= 1e\+06, got 0"):
        Scale(tokens=0)
    with pytest.raises(ConfigError, match=r"scale_tools"):
        Scale(tools=float("nan"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_synthetic_workloads_match_the_published_statistics(name: str) -> None:
    statistics = WORKLOADS[name]
    trace = synthesize(name, programs=800, seed=5)
    turns = np.array([len(p.turns) for p in trace.programs])
    tokens = np.array([p.tokens for p in trace.programs])
    tool_ms = np.array([t.tool_ms for p in trace.programs for t in p.turns if t.tool_ms is not None])
    for sample, (mean, deviation) in ((turns, statistics.turns), (tokens, statistics.tokens)):
        assert sample.mean() == pytest.approx(mean, rel=0.06)
        assert sample.std() == pytest.approx(deviation, rel=0.12)
    assert tool_ms.mean() == pytest.approx(statistics.tool_ms[0], rel=0.12)
    # The deviation of a heavy-tailed sample converges slowly and from below.
    assert tool_ms.std() == pytest.approx(statistics.tool_ms[1], rel=0.35)
    assert all(reusable_tokens(a, b) for p in trace.programs for a, b in zip(p.turns, p.turns[1:], strict=False))
    assert all(p.turns[-1].tool_ms is None for p in trace.programs)


def test_swe_like_programs_end_with_a_long_context_and_say_little() -> None:
    programs = synthesize("swe-like", programs=800, seed=5).programs
    turns = np.array([len(p.turns) for p in programs])
    contexts = np.array([p.turns[-1].input_tokens for p in programs])
    first = np.array([p.turns[0].input_tokens for p in programs])
    tool_ms = np.array([t.tool_ms for p in programs for t in p.turns if t.tool_ms is not None])
    outputs = np.array([t.output_tokens for p in programs for t in p.turns])
    assert (turns.mean(), turns.std()) == pytest.approx((10.9, 2.1), rel=0.05)
    assert contexts.mean() == pytest.approx(70_126, rel=0.03)
    assert contexts.std() == pytest.approx(19_732, rel=0.06)
    assert (first / contexts).mean() == pytest.approx(0.18, rel=0.01)
    assert tool_ms.mean() == pytest.approx(925, rel=0.12)
    assert np.median(outputs) == pytest.approx(181, rel=0.06)
    assert outputs.max() <= 900
    assert all(
        a.input_tokens <= b.input_tokens for p in programs for a, b in zip(p.turns, p.turns[1:], strict=False)
    )
    assert all(p.turns[-1].tool_ms is None and not p.turns[-1].calls_tool for p in programs)
    assert synthesize("swe-like", programs=3, seed=5).programs == programs[:3]


def test_agentperf_like_turns_have_the_published_lengths() -> None:
    programs = synthesize("agentperf-like", programs=800, seed=5).programs
    turns = [turn for program in programs for turn in program.turns]
    prompts = np.array([turn.input_tokens for turn in turns])
    outputs = np.array([turn.output_tokens for turn in turns])
    assert prompts.mean() == pytest.approx(PROMPT_TOKENS, rel=0.05)
    assert (prompts.min(), max(p.context_tokens for p in programs)) == pytest.approx((5_000, 131_000), rel=0.02)
    assert (np.median(outputs), np.percentile(outputs, 95)) == pytest.approx((150, 2_000), rel=0.05)
    assert np.median([turn.tool_ms for turn in turns if turn.tool_ms is not None]) == pytest.approx(1_000, rel=0.05)
    assert max(len(program.turns) for program in programs) <= 200
    assert all(reusable_tokens(a, b) for p in programs for a, b in zip(p.turns, p.turns[1:], strict=False))


def test_synthetic_workloads_are_reproducible() -> None:
    assert synthesize("swe-bench", programs=5, seed=3) == synthesize("swe-bench", programs=5, seed=3)
    assert synthesize("swe-bench", programs=5, seed=3) != synthesize("swe-bench", programs=5, seed=4)
    assert (
        synthesize("swe-bench", programs=9, seed=3).programs[:5]
        == synthesize("swe-bench", programs=5, seed=3).programs
    )
    with pytest.raises(ConfigError, match="there is no 'swe'; built in: swe-bench, "):
        synthesize("swe", programs=1)
    with pytest.raises(ConfigError, match="programs"):
        synthesize("swe-bench", programs=0)


@pytest.mark.parametrize("arrival", [Poisson(0.2), Closed(8), Burst(0.2, 10)], ids=str)
def test_arrivals_are_read_as_they_are_written(arrival: Arrival) -> None:
    assert parse_arrival(str(arrival)) == arrival
    assert at_rate(Burst(0.2, 10), 1 / 3) == Burst(0.333333, 10)


@pytest.mark.parametrize(
    "text",
    [
        *("", "poisson", "poisson:x", "closed:1.5", "burst:1", "burst:1:x", "uniform:3"),
        *("poisson:0", "poisson:inf", "poisson:nan", "closed:0", "burst:0:2", "burst:1:0"),
    ],
)
def test_arrivals_that_cannot_be_are_explained(text: str) -> None:
    with pytest.raises(ConfigError, match=f"arrival: expected .*, got '{text}'"):
        parse_arrival(text)


def test_poisson_arrivals_have_their_rate_and_one_pattern_per_seed() -> None:
    times = arrival_times_ns(4000, 0.5, seed=1)
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] / 1e9 == pytest.approx(4000 / 0.5, rel=0.05)
    assert times == arrival_times_ns(4000, 0.5, seed=1)
    faster = arrival_times_ns(4000, 1.0, seed=1)
    assert all(abs(slow - 2 * fast) <= 2 for slow, fast in zip(times, faster, strict=True))
    assert arrival_times_ns(0, 1.0, seed=1) == []


def test_bursts_come_at_one_instant_and_have_their_rate() -> None:
    times = times_ns(Burst(0.5, 8), 4001, seed=1)
    assert len(times) == 4001
    assert all(len(set(times[at : at + 8])) == 1 for at in range(0, 4001, 8))
    assert len(set(times)) == 501
    assert times[-1] / 1e9 == pytest.approx(4000 / 0.5, rel=0.1)
    assert times_ns(Poisson(0.5), 9, seed=1) == arrival_times_ns(9, 0.5, seed=1)
