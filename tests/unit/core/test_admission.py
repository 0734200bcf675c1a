"""Aimd and Fixed, with golden values worked out by hand from MARS Algorithm 1."""

from dataclasses import replace

import pytest
from made_facts import MadeFacts

from controlplane.core.model.types import Pressure, seconds
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.protocols import Window

HEALTHY = Pressure(programs_active=1000)  # the window is used
KV = Pressure(kv_overloaded=True, programs_active=1)
FULL = Pressure(kv_has_slack=False, programs_active=1000)


def run(policy: Aimd, *pressures: Pressure, in_interval: int = 1, facts: MadeFacts | None = None) -> list[Window]:
    """So many updates a control interval of a second; the first interval only begins it."""
    state, windows = policy.initial(), []
    for index, pressure in enumerate(pressures):
        ends_ns = seconds(101 + index // in_interval)
        pressure = replace(pressure, interval_ends_ns=ends_ns)
        state, window = policy.update(state, facts or MadeFacts(), pressure, ends_ns - 1)
        windows.append(window)
    return windows


def test_growth_by_alpha_each_interval() -> None:
    assert [w.window for w in run(Aimd(), *[HEALTHY] * 4)] == [8.0, 9.0, 10.0, 11.0]


def test_the_next_cut_waits_until_the_programs_above_the_last_one_have_left() -> None:
    active = (8, 8, 8, 7, 6, 5, 4, 3)  # the first only starts the timer; it is cut to 5.6 while 8 are active
    windows = run(Aimd(), *[Pressure(kv_overloaded=True, programs_active=count) for count in active])
    assert [round(w.window, 3) for w in windows] == [8.0, 5.6, 5.6, 5.6, 5.6, 3.92, 3.92, 2.744]
    assert windows[2].reason == "kv overloaded: the last cut has yet to tell"


def test_without_slack_the_window_stays() -> None:
    assert {w.window for w in run(Aimd(), *[FULL] * 5)} == {8.0}


def test_a_slow_start_doubles_until_the_first_cut_and_never_again() -> None:
    policy = Aimd(slow_start=True)
    windows = run(policy, *[HEALTHY] * 3, KV, *[HEALTHY] * 2)
    assert [round(w.window, 2) for w in windows] == [8.0, 16.0, 32.0, 22.4, 23.4, 24.4]
    assert windows[1].reason == "room, never cut yet: x2"
    assert run(Aimd(slow_start=True, window_max=20.0), *[HEALTHY] * 4)[-1].window == 20.0


def test_the_cpu_cap_clamps_what_is_returned_and_not_the_window() -> None:
    pressure = Pressure(cpus=4, tools_per_program=1.0, programs_active=8, cpu_overloaded=True)
    window = run(Aimd(), pressure)[-1]
    assert (window.limit, window.window) == (4, 8.0)
    assert "capped by the CPUs at 4" in window.reason


PRINTED = Aimd(used_only=False, one_cut=False, evidence=False, forecast=False)


def test_as_printed_cpus_clamp_without_overload() -> None:
    busy = Pressure(programs_active=2, cpus=4, tools_per_program=1)
    assert (run(PRINTED, busy)[0].limit, run(Aimd(), busy)[0].limit) == (4, 8)


def test_as_printed_w_kv_counts_who_fits_by_what_waits_now() -> None:
    pressure = Pressure(
        programs_active=2, kv_total_blocks=1000, kv_demand_blocks=400, queue_length=9, queued_blocks_mean=250
    )
    window = run(PRINTED, pressure)[0]
    assert (window.limit, window.room_blocks, window.ahead_blocks) == (4, (), ())
    assert run(PRINTED, replace(pressure, kv_demand_blocks=1200))[0].limit == 2, "nobody else gets in"
    assert run(PRINTED, replace(pressure, kv_total_blocks=0))[0].limit == 8


@pytest.mark.parametrize(
    ("demand", "more"),
    [(0, 10), (500, 5), (600, 3), (750, 1), (900, 0), (1200, 0)],  # (1000 - demand)^2 / 500 below half, over 100
)
def test_a_soft_w_kv_lets_fewer_in_the_less_is_left(demand: int, more: int) -> None:
    soft = Aimd(forecast=False, kv_soft=0.5, window_initial=100)
    pressure = Pressure(
        programs_active=2, kv_total_blocks=1000, kv_demand_blocks=demand, queue_length=9, queued_blocks_mean=100
    )
    assert run(soft, pressure)[0].limit == 2 + more


def test_turns_that_take_many_times_as_long_as_alone_are_overload_where_that_is_asked() -> None:
    policy = Aimd(slowdown_high=4.0)
    usual, slow = MadeFacts(marginal_throughput=0.26), MadeFacts(marginal_throughput=0.25)
    one = replace(HEALTHY, programs_active=8)
    assert [w.window for w in run(policy, one, one, facts=usual)] == [8.0, 9.0]
    cut = run(policy, one, one, facts=slow)[-1]
    assert (round(cut.window, 2), cut.reason) == (5.6, "gpu overloaded: x0.7")
    assert run(Aimd(), one, one, facts=slow)[-1].window == 9.0
