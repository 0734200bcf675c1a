"""The detector: thresholds, hysteresis, persistence."""

from dataclasses import replace

import pytest

from controlplane.core.errors import ConfigError
from controlplane.core.overload import Load, Overload, OverloadRules, detect

CALM = Load(tools=0, cpus=4.0, slowdown_ratio=1.0, kv_use_ratio=0.0, retractions=0, cold_returns=0)
CROWDED = replace(CALM, tools=4, slowdown_ratio=1.5)


def run(*loads: Load, state: Overload | None = None) -> list[Overload]:
    seen = []
    state = state or Overload()
    for load in loads:
        state = detect(state, load, OverloadRules())
        seen.append(state)
    return seen


def test_the_host_is_overloaded_after_three_intervals_in_a_row() -> None:
    assert [s.cpu for s in run(CROWDED, CROWDED, CROWDED, CROWDED)] == [False, False, True, True]


def test_one_calm_interval_starts_the_count_again() -> None:
    assert not any(s.cpu for s in run(*[CROWDED, CROWDED, CALM] * 4))


@pytest.mark.parametrize(
    "load",
    [
        replace(CROWDED, tools=3),
        replace(CROWDED, slowdown_ratio=1.49),
        replace(CROWDED, cpus=0.0),
        replace(CROWDED, cpus=4.5),
    ],
)
def test_both_crowding_and_slowness_are_needed(load: Load) -> None:
    assert not run(*[load] * 6)[-1].cpu


@pytest.mark.parametrize("eased", [replace(CROWDED, tools=3), replace(CROWDED, slowdown_ratio=1.19)])
def test_either_clears_the_host_after_three_intervals(eased: Load) -> None:
    assert [s.cpu for s in run(eased, eased, eased, state=Overload(cpu=True))] == [True, True, False]


@pytest.mark.parametrize("between", [replace(CROWDED, slowdown_ratio=1.3), replace(CROWDED, tools=4, cpus=4.5)])
def test_between_the_thresholds_an_overload_stays(between: Load) -> None:
    assert run(*[between] * 10, state=Overload(cpu=True))[-1].cpu
    assert not run(*[between] * 10)[-1].cpu


# The host's own pressure

STALLED = replace(CALM, tools=4, cpu_use_ratio=0.95, cpu_stall_ratio=0.5)


def test_tools_that_burn_cpus_from_the_first_call_on_are_seen_by_the_host_s_pressure() -> None:
    """None is slower than its median, which the crowd itself has made."""
    assert [s.cpu for s in run(STALLED, STALLED, STALLED)] == [False, False, True]


@pytest.mark.parametrize(
    "load",
    [
        replace(STALLED, tools=3),
        replace(STALLED, cpu_use_ratio=0.94),
        replace(STALLED, cpu_stall_ratio=0.49),
        replace(STALLED, cpus=0.0),
        replace(STALLED, cpu_use_ratio=0.0),
    ],
)
def test_pressure_is_a_crowd_on_cpus_that_are_all_in_use_and_waited_for(load: Load) -> None:
    assert not run(*[load] * 6)[-1].cpu


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (replace(STALLED, cpu_stall_ratio=0.25), True),
        (replace(STALLED, cpu_use_ratio=0.6), True),
        (replace(STALLED, cpu_stall_ratio=0.24), False),
        (replace(STALLED, cpu_stall_ratio=0.24, slowdown_ratio=1.3), True),
        (replace(STALLED, cpu_use_ratio=0.49), False),
        (replace(STALLED, tools=3), False),
    ],
)
def test_it_clears_when_neither_sign_is_left_or_cpus_are_to_spare(later: Load, stays: bool) -> None:
    assert run(*[later] * 3, state=Overload(cpu=True))[-1].cpu is stays


NEIGHBOUR = replace(CALM, cpu_use_ratio=1.0, cpu_stall_ratio=0.98)  # a build, a backup, the engine itself


def test_what_stalls_while_no_tool_runs_is_not_the_tools_doing() -> None:
    """Two tools that wait for a network, on two CPUs which somebody else has filled: no window can help."""
    beside = replace(NEIGHBOUR, tools=4)
    assert run(*[beside] * 3)[-1].cpu, "unless it was seen without tools"
    taught = run(*[NEIGHBOUR] * 60)[-1]
    assert not run(*[beside] * 20, state=taught)[-1].cpu
    assert not run(*[beside] * 3, state=replace(taught, cpu=True))[-1].cpu


def test_tools_beside_a_neighbour_are_judged_by_what_came_with_them() -> None:
    half = replace(NEIGHBOUR, cpu_use_ratio=0.6, cpu_stall_ratio=0.3)
    state = run(*[half] * 100)[-1]
    assert run(*[replace(half, tools=4, cpu_use_ratio=1.0, cpu_stall_ratio=0.85)] * 3, state=state)[-1].cpu
    assert run(*[replace(half, tools=4, slowdown_ratio=1.5)] * 3, state=state)[-1].cpu, "slow tools still tell"


def test_a_neighbour_that_has_gone_excuses_nobody() -> None:
    taught = run(*[NEIGHBOUR] * 60)[-1]
    calm = run(replace(CALM, tools=4), state=taught)[-1]
    assert run(*[STALLED] * 3, state=calm)[-1].cpu


def test_a_stall_that_lingers_after_tools_have_ended_is_not_taken_for_a_neighbour_s() -> None:
    """The kernel's mean over 10 s falls by a tenth a second."""
    lingers = [replace(CALM, cpu_stall_ratio=0.9 * 0.9**second) for second in range(40)]
    assert max(each.usual_stall_ratio for each in run(*lingers)) < 0.25


@pytest.mark.parametrize(
    "thrashing",
    [
        replace(CALM, kv_use_ratio=1.0),
        replace(CALM, retractions=1),
        replace(CALM, cold_returns=1, kv_use_ratio=0.9),
    ],
)
def test_the_cache_is_overloaded_at_once(thrashing: Load) -> None:
    assert run(thrashing)[-1].kv
    assert not run(thrashing)[-1].cpu


def test_a_cold_return_to_a_pool_with_slack_is_no_overload() -> None:
    assert not run(replace(CALM, cold_returns=3, kv_use_ratio=0.89))[-1].kv


def test_the_cache_is_clear_after_three_intervals_below_the_low_mark() -> None:
    low = replace(CALM, kv_use_ratio=0.949)
    assert [s.kv for s in run(low, low, low, state=Overload(kv=True))] == [True, True, False]


def test_between_the_marks_the_cache_keeps_its_verdict_and_loses_its_streak() -> None:
    low, between = replace(CALM, kv_use_ratio=0.5), replace(CALM, kv_use_ratio=0.95)
    states = run(low, low, between, low, low, low, state=Overload(kv=True))
    assert [s.kv for s in states] == [True, True, True, True, True, False]
    assert not run(*[between] * 5)[-1].kv


def test_a_retraction_while_clearing_starts_again() -> None:
    states = run(CALM, CALM, replace(CALM, retractions=2), CALM, CALM, state=Overload(kv=True))
    assert all(s.kv for s in states)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("persistence", {"persistence": 0}),
        ("cpu_slowdown_high", {"cpu_slowdown_high": 0.9}),
        ("cpu_slowdown_high", {"cpu_slowdown_high": float("inf")}),
        ("cpu_slowdown_low", {"cpu_slowdown_low": 2.0}),
        ("cpu_tools_low", {"cpu_tools_low": 0.0}),
        ("kv_high", {"kv_high": 2.1}),
        ("kv_low", {"kv_low": 1.01}),
        ("kv_slack", {"kv_slack": 0.0}),
        ("kv_slack", {"kv_slack": 0.96}),
        ("kv_cold_return", {"kv_cold_return": 1.1}),
        ("kv_high", {"kv_high": float("nan")}),
    ],
)
def test_rules_out_of_range_are_refused(field: str, values: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as error:
        OverloadRules(**values)  # type: ignore[arg-type]
    assert error.value.field == field
