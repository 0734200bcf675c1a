"""Aimd and Fixed, with golden values worked out by hand from MARS Algorithm 1."""

from dataclasses import replace

import pytest
from made_facts import MadeFacts

from controlplane.core.admission.aimd import Aimd, AimdState
from controlplane.core.admission.fixed import Fixed
from controlplane.core.errors import ConfigError
from controlplane.core.policies import Window
from controlplane.core.types import Pressure, seconds

HEALTHY = Pressure(programs_active=1000)  # the window is used
CPU = Pressure(cpu_overloaded=True, programs_active=1)  # no more than any window: the last cut has told
KV = Pressure(kv_overloaded=True, programs_active=1)
FULL = Pressure(kv_has_slack=False, programs_active=1000)


def run(policy: Aimd, *pressures: Pressure, in_interval: int = 1) -> list[Window]:
    """So many updates a control interval of a second; the first interval only begins it."""
    state, windows = policy.initial(), []
    for index, pressure in enumerate(pressures):
        ends_ns = seconds(101 + index // in_interval)
        pressure = replace(pressure, interval_ends_ns=ends_ns)
        state, window = policy.update(state, MadeFacts(), pressure, ends_ns - 1)
        windows.append(window)
    return windows


def test_growth_by_alpha_each_interval() -> None:
    assert [w.window for w in run(Aimd(), *[HEALTHY] * 4)] == [8.0, 9.0, 10.0, 11.0]


@pytest.mark.parametrize("overloaded", [CPU, KV])
def test_decrease_by_beta_down_to_the_minimum(overloaded: Pressure) -> None:
    windows = run(Aimd(), *[overloaded] * 9)
    assert [round(w.window, 4) for w in windows] == [8.0, 5.6, 3.92, 2.744, 1.9208, 1.3446, 1.0, 1.0, 1.0]
    assert [w.limit for w in windows] == [8, 5, 3, 2, 1, 1, 1, 1, 1]


def test_the_next_cut_waits_until_the_programs_above_the_last_one_have_left() -> None:
    active = (8, 8, 8, 7, 6, 5, 4, 3)  # the first only starts the timer; it is cut to 5.6 while 8 are active
    windows = run(Aimd(), *[Pressure(kv_overloaded=True, programs_active=count) for count in active])
    assert [round(w.window, 3) for w in windows] == [8.0, 5.6, 5.6, 5.6, 5.6, 3.92, 3.92, 2.744]
    assert windows[2].reason == "kv overloaded: the last cut has yet to tell"


def test_without_slack_the_window_stays() -> None:
    assert {w.window for w in run(Aimd(), *[FULL] * 5)} == {8.0}


def test_a_window_that_is_not_used_does_not_grow() -> None:
    unused = Pressure(programs_active=7)
    assert {w.window for w in run(Aimd(), *[unused] * 5)} == {8.0}
    assert run(Aimd(window_initial=7.9), unused, unused)[-1].window == pytest.approx(8.9)


def test_a_slow_start_doubles_until_the_first_cut_and_never_again() -> None:
    policy = Aimd(slow_start=True)
    windows = run(policy, *[HEALTHY] * 3, KV, *[HEALTHY] * 2)
    assert [round(w.window, 2) for w in windows] == [8.0, 16.0, 32.0, 22.4, 23.4, 24.4]
    assert windows[1].reason == "slack, never cut yet: x2"
    assert run(Aimd(slow_start=True, window_max=20.0), *[HEALTHY] * 4)[-1].window == 20.0


def test_nothing_moves_within_the_interval() -> None:
    windows = run(Aimd(), *[CPU] * 10, in_interval=10)
    assert {w.window for w in windows} == {8.0}
    assert run(Aimd(), *[CPU] * 11, in_interval=10)[-1].window == pytest.approx(5.6)


def test_a_late_update_is_one_step() -> None:
    policy = Aimd()
    late = replace(HEALTHY, interval_ends_ns=seconds(3600))
    state, _ = policy.update(AimdState(window=8.0, interval_ends_ns=0), MadeFacts(), late, seconds(3600))
    assert state == AimdState(window=9.0, interval_ends_ns=seconds(3600))


def test_the_window_stops_at_its_maximum() -> None:
    assert run(Aimd(window_initial=9.5, window_max=10), *[HEALTHY] * 3)[-1].window == 10.0


def test_the_cpu_cap_clamps_what_is_returned_and_not_the_window() -> None:
    pressure = Pressure(cpus=4, tools_per_program=1.0, programs_active=8, cpu_overloaded=True)
    window = run(Aimd(), pressure)[-1]
    assert (window.limit, window.window) == (4, 8.0)
    assert "W_cpu=4" in window.reason


def test_room_is_told_apart_from_the_window() -> None:
    """Not how many fit, which differs by who comes: what each candidate is held against (``core.room``)."""
    curve = (700,) * 8 + (100,) * 8
    pressure = Pressure(
        kv_total_blocks=1000, kv_demand_blocks=600, kv_forecast_blocks=curve, programs_active=3, queue_length=1
    )
    window = run(Aimd(kv_high=0.8), pressure)[-1]
    assert (window.limit, window.room_blocks, window.filled_blocks) == (8, (400,), 800.0)
    assert window.ahead_blocks == (100.0,) * 8 + (700.0,) * 8
    assert window.excess_ratio == 0.0, "nothing is known of what it costs"
    assert run(Aimd(), replace(pressure, queue_length=0))[-1].room_blocks == (400,), "children ask for their gang"
    assert run(Aimd(), replace(pressure, queue_length=0, kv_forecast_blocks=()))[-1].room_blocks == (), (
        "nobody asks"
    )


@pytest.mark.parametrize(("alone_ratio", "filled"), [(1.0, 1600.0), (0.5, 1200.0), (0.0, 800.0)])
def test_the_more_computing_is_saturated_the_less_the_forecast_may_fill(alone_ratio: float, filled: float) -> None:
    """What one more program would bring is added to kv_high: all of it where the engine idles (ADR 0041)."""
    pressure = Pressure(
        kv_total_blocks=1000, kv_demand_blocks=600, kv_forecast_blocks=(700,) * 16, programs_active=3
    )
    facts = MadeFacts(alone_ratio=alone_ratio, again_ns=10, turn_service_ns=20, turns_running=1.0)
    policy = Aimd(kv_high=0.8, compute=True)
    _, window = policy.update(policy.initial(), facts, pressure, 0)
    assert window.filled_blocks == pytest.approx(filled)
    assert window.ahead_blocks == pytest.approx((filled - 700,) * 16)
    assert window.excess_ratio == pytest.approx(min(0.5, 0.1 * (2 * alone_ratio) ** 4))
    _, other = Aimd(kv_high=0.8).update(policy.initial(), facts, pressure, 0)
    assert (other.filled_blocks, other.excess_ratio) == (800.0, 0.5), "without it nothing is asked of computing"


def test_room_does_not_matter_while_the_pool_is_unknown() -> None:
    window = run(Aimd(), Pressure(programs_active=3, queue_length=2))[-1]
    assert (window.limit, window.room_blocks, window.ahead_blocks) == (8, (), ())


def test_the_reason_says_which_side_is_overloaded() -> None:
    both = Pressure(cpu_overloaded=True, kv_overloaded=True)
    assert run(Aimd(), both, both)[-1].reason.startswith("cpu+kv overloaded")
    assert run(Aimd(), KV, KV)[-1].reason.startswith("kv overloaded")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("alpha", {"alpha": 0}),
        ("alpha", {"alpha": float("nan")}),
        ("beta", {"beta": 0}),
        ("beta", {"beta": 1}),
        ("window_min", {"window_min": 0.5}),
        ("window_max", {"window_max": 0.5}),
        ("window_initial", {"window_initial": 0.5}),
        ("window_initial", {"window_initial": 5000}),
        ("kv_high", {"kv_high": 0}),
    ],
)
def test_parameters_out_of_range_are_refused(field: str, values: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as error:
        Aimd(**values)
    assert error.value.field == field


def test_fixed_returns_what_it_was_told() -> None:
    policy = Fixed(window=3)
    _, window = policy.update(policy.initial(), MadeFacts(), CPU, 0)
    assert (window.limit, window.window) == (3, 3.0)
    assert Fixed().update(policy.initial(), MadeFacts(), CPU, 0)[1].limit == 0


def test_fixed_refuses_a_negative_window() -> None:
    with pytest.raises(ConfigError) as error:
        Fixed(window=-1)
    assert error.value.field == "window"


PRINTED = Aimd(used_only=False, one_cut=False, evidence=False, forecast=False)


def test_as_printed_the_window_grows_unused_and_is_cut_in_each_interval() -> None:
    unused = Pressure(programs_active=2)
    assert [w.window for w in run(PRINTED, *[unused] * 3)] == [8.0, 9.0, 10.0]
    above = Pressure(kv_overloaded=True, programs_active=8)
    assert [round(w.window, 3) for w in run(PRINTED, *[above] * 4)] == [8.0, 5.6, 3.92, 2.744]


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
