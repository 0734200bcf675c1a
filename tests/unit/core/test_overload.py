"""The detector: thresholds, hysteresis, persistence."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver

from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.overload import IntervalLoad, Overload, OverloadRules, detect
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.core.scheduling.sensing import sense

CALM = IntervalLoad(tools=0, cpus=4.0, slowdown_ratio=1.0, kv_use_ratio=0.0, retractions=0, cold_returns=0)
CROWDED = replace(CALM, tools=4, slowdown_ratio=1.5)


def run(*loads: IntervalLoad, state: Overload | None = None) -> list[Overload]:
    seen = []
    state = state or Overload()
    for load in loads:
        state = detect(state, load, OverloadRules())
        seen.append(state)
    return seen


def test_the_host_is_overloaded_after_three_intervals_in_a_row() -> None:
    assert [s.cpu for s in run(CROWDED, CROWDED, CROWDED, CROWDED)] == [False, False, True, True]


# The host's own pressure

STALLED = replace(CALM, tools=4, cpu_use_ratio=0.95, cpu_stall_ratio=0.5)


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
def test_it_clears_when_neither_sign_is_left_or_cpus_are_to_spare(later: IntervalLoad, stays: bool) -> None:
    assert run(*[later] * 3, state=Overload(cpu=True))[-1].cpu is stays


def test_the_cache_is_clear_after_three_intervals_below_the_low_mark() -> None:
    low = replace(CALM, kv_use_ratio=0.949)
    assert [s.kv for s in run(low, low, low, state=Overload(kv=True))] == [True, True, False]


def test_between_the_marks_the_cache_keeps_its_verdict_and_loses_its_streak() -> None:
    low, between = replace(CALM, kv_use_ratio=0.5), replace(CALM, kv_use_ratio=0.95)
    states = run(low, low, between, low, low, low, state=Overload(kv=True))
    assert [s.kv for s in states] == [True, True, True, True, True, False]
    assert not run(*[between] * 5)[-1].kv


def test_what_memory_below_the_device_keeps_may_be_thrown_out() -> None:
    for tolerated, overloaded in ((0.5, True), (0.51, False)):  # of the pool: more only where loading is cheap
        state = Driver(PRESETS["penstock"]).controller.state
        state.window = replace(state.window, excess_now_ratio=tolerated)
        state.ledger.turns.signals.retractions = 1
        sense(state, ControlRules(), None, seconds(1))
        assert state.overload.kv == overloaded


@given(pool=st.integers(1, 64), demands=st.lists(st.integers(0, 64), max_size=20))
def test_what_fits_is_no_overload_however_full_it_makes_the_pool(pool: int, demands: list[int]) -> None:
    """In a pool of a few contexts, as a server's slots are, it is often exactly full."""
    fitting = [replace(CALM, kv_use_ratio=min(demand, pool) / pool) for demand in demands]
    assert not any(state.kv for state in run(*fitting))
    assert run(*fitting, replace(CALM, kv_use_ratio=(pool + 1) / pool))[-1].kv


def test_whoever_comes_when_one_of_a_few_slots_is_free_is_let_in() -> None:
    driver = Driver(PRESETS["penstock"])
    driver.pool(total=4, free=4, block_tokens=1000)
    for name in "abcd":
        driver.ask(name)
        assert driver.admitted() == [name]
        driver.submit(name, blocks=1)
    for _ in range(9):
        driver.tick(after_s=1.0)
    driver.finish("a")
    driver.end("a")
    driver.ask("e")
    assert driver.admitted() == ["e"]
