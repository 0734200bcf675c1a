"""What is learned: averages, durations, tool times, eta, token estimates."""

import numpy as np
import pytest

from controlplane.core.estimators.workload import Estimates, Memoryfulness, as_seconds


@pytest.mark.parametrize("runs", [[1, 2], [3, 5, 9], [40] * 7, [1] * 4 + [2], [10, 200, 3, 3, 17]])
def test_eta_from_sums_is_the_correlation(runs: list[int]) -> None:
    learned = Memoryfulness()
    for turns in runs:
        learned.add(turns)
    k = np.concatenate([np.arange(1, n + 1) for n in runs])
    rest = np.concatenate([n - np.arange(1, n + 1) for n in runs])
    assert learned.eta == pytest.approx(-np.corrcoef(k, rest)[0, 1])


@pytest.mark.parametrize("runs", [[], [5], [1, 1], [0, 0], [-1, 4]])
def test_eta_is_one_while_it_is_not_defined(runs: list[int]) -> None:
    learned = Memoryfulness()
    for turns in runs:
        learned.add(turns)
    assert learned.eta == 1.0


def teach(estimates: Estimates, tool: str, duration_ns: int, times: int, *, crowded: bool = False) -> None:
    for _ in range(times):
        estimates.tool_ended(tool, duration_ns, crowded=crowded)


def test_lasting_crowding_does_not_raise_what_it_is_measured_against() -> None:
    estimates = Estimates()
    teach(estimates, "bash", 100, 20)
    teach(estimates, "bash", 400, 500, crowded=True)
    assert estimates.tools["bash"].all.median_ns == 400
    assert estimates.slowdown_ratio == pytest.approx(4.0, abs=0.01)


@pytest.mark.parametrize("uncrowded", [0, 5, 60])
def test_two_kinds_of_calls_under_one_name_are_not_slow_and_a_slow_host_is_told(
    uncrowded: int,
) -> None:
    """Half of a tool's calls take five times as long as the others, whatever the host does."""
    for seed in range(20):
        estimates, long = Estimates(), np.random.default_rng(seed).random(400) < 0.5
        for number, is_long in enumerate(long):
            estimates.tool_ended("sleep", 7800 if is_long else 1700, crowded=number >= uncrowded)
            assert estimates.slowdown_ratio < 1.5 or number < 40
        for is_long in long[:200] if uncrowded > 5 else ():
            estimates.tool_ended("sleep", 3 * (7800 if is_long else 1700), crowded=True)
        assert estimates.slowdown_ratio > 1.5 or uncrowded <= 5


def test_names_are_bounded_and_the_rest_is_learned_without_one() -> None:
    estimates = Estimates()
    for number in range(600):
        teach(estimates, f"tool-{number}", 10, 1)
    assert len(estimates.tools) == 512
    assert "tool-599" not in estimates.tools
    assert len(estimates.tools[""].all.ascending) == 256


def test_the_face_that_policies_see() -> None:
    estimates = Estimates()
    assert estimates.prefill_ns(1000) == 0
    estimates.prefill.add(1000, 0, 2500)
    estimates.eviction_delay.add(7.4)
    estimates.output.add(12.0)
    assert estimates.prefill_ns(1000) == 2500
    assert estimates.eviction_delay_ns == 7
    assert estimates.output.value == 12.0
    assert estimates.memoryfulness == 1.0
    assert as_seconds(1_500_000_000) == 1.5


def test_a_turns_service_is_learned_where_an_engine_tells_it() -> None:
    estimates = Estimates()
    assert estimates.turn_service_ns == 0
    estimates.turn_ended(900, 40, 1000)
    estimates.turn_ended(900, 40, 0)
    estimates.turn_ended(900, 40, 2000)
    assert estimates.turn_service_ns == 1500


def test_what_a_context_would_take_again_is_a_mean_over_turns_and_not_over_programs() -> None:
    """A long program has more turns, and larger ones: it is its contexts that are computed again."""
    estimates = Estimates()
    assert estimates.recompute_ns == 0
    estimates.prefill.add(1000, 0, 2000)
    for tokens in (100, 500, 900):
        estimates.turn_ended(tokens, 40, 1000)
    estimates.turn_ended(10_000, 40, 0)
    assert estimates.recompute_ns == 1000


def test_a_slowdown_that_chance_explains_is_none() -> None:
    """Twenty calls that scatter by a factor of 3 both ways, and a little upwards."""
    estimates = Estimates()
    for _ in range(5):
        estimates.tool_ended("bash", 1000, crowded=False)
    for _ in range(12):
        estimates.tool_ended("bash", 3000, crowded=True)
        estimates.tool_ended("bash", 400, crowded=True)
    assert estimates.slowdown_ratio == 1.0
    for _ in range(40):
        estimates.tool_ended("bash", 3000, crowded=True)
    assert estimates.slowdown_ratio > 1.5, "but not for ever"
