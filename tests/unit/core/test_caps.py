"""W_cpu and W_kv, by hand."""

from dataclasses import replace

import pytest
from made_facts import MadeFacts

from controlplane.core.caps import NO_CAP, cpu_cap, kv_cap, tolerated_excess
from controlplane.core.forecast import POINTS, Growing, fitting
from controlplane.core.types import Pressure, seconds

NEWCOMER = Growing(10, 100)


@pytest.mark.parametrize(
    ("cpus", "tools_per_program", "cap"),
    [
        (0.0, 0.5, NO_CAP),
        (8.0, 0.0, NO_CAP),
        (8.0, 0.5, 16),
        (8.0, 0.6, 13),
        (0.5, 0.9, 1),
        (2.0, 4.0, 1),
        (8.0, 0.01, 160),  # at least 0.05 tools a program are assumed
    ],
)
def test_cpu_cap(cpus: float, tools_per_program: float, cap: int) -> None:
    slow = Pressure(cpus=cpus, tools_per_program=tools_per_program, cpu_overloaded=True)
    assert cpu_cap(slow) == cap
    assert cpu_cap(replace(slow, cpu_overloaded=False)) == NO_CAP, "tools that only wait"


def pressure(*curve: int, newcomer: Growing | None = NEWCOMER, active: int = 10) -> Pressure:
    forecast = curve * (POINTS // len(curve))
    return Pressure(kv_total_blocks=1000, kv_forecast_blocks=forecast, newcomer=newcomer, programs_active=active)


@pytest.mark.parametrize(
    ("seen", "cap"),
    [
        (replace(pressure(0), kv_total_blocks=0), NO_CAP),  # no pool sample yet
        (pressure(0, newcomer=None), NO_CAP),  # nobody waits
        (pressure(0), 10 + 9),  # 950 for programs that end with 100
        (pressure(500), 10 + 4),
        (pressure(851), 10),
        (pressure(2000), 10),
        (pressure(2000, active=0), 1),
    ],
)
def test_kv_cap(seen: Pressure, cap: int) -> None:
    assert kv_cap(seen, kv_high=0.95) == cap


def test_what_will_have_ended_by_then_does_not_count_against_newcomers() -> None:
    leaving = (900,) * (POINTS // 2) + (0,) * (POINTS // 2)
    staying = (900,) * POINTS
    assert kv_cap(replace(pressure(0), kv_forecast_blocks=leaving), kv_high=1.0) == 10 + 1  # 55 each when they end
    assert kv_cap(replace(pressure(0), kv_forecast_blocks=staying), kv_high=1.0) == 10 + 1  # 100 each at the end
    assert kv_cap(replace(pressure(0), kv_forecast_blocks=leaving), kv_high=1.2) == 10 + 5
    assert kv_cap(replace(pressure(0), kv_forecast_blocks=staying), kv_high=1.2) == 10 + 3


@pytest.mark.parametrize(("excess", "more"), [(0.0, 9), (0.02, 10), (0.05, 11), (0.1, 13), (0.5, 30)])
def test_so_much_of_the_forecast_demand_may_be_too_much(excess: float, more: int) -> None:
    """Programs that grow from 10 to 100 blocks, and 950: 12 of them ask for 5.4% too much, 13 for 8.5%."""
    assert fitting((0,) * POINTS, NEWCOMER, 950, excess) == more


def test_nobody_more_fits_where_the_others_exceed_the_share_already() -> None:
    assert fitting((2000,) * POINTS, NEWCOMER, 950, 0.1) == 0


def test_the_excess_is_what_computing_it_again_may_cost() -> None:
    """55 blocks of 16 tokens at 1 ms hold the engine up for 0.88 s; a turn's own part is 4.4 s / 10 = 0.44 s."""
    facts = MadeFacts(prefill_ns_per_token=1_000_000, turn_service_ns=seconds(4.4), block_tokens=16)
    assert tolerated_excess(pressure(500), facts, 0.4) == pytest.approx(0.4 * 0.5**2)
    assert tolerated_excess(pressure(500, active=1), facts, 0.4) == 0.5, "not more than half"
    assert tolerated_excess(pressure(500), MadeFacts(turn_service_ns=seconds(1)), 0.4) == 0.0, "not known yet"
    assert tolerated_excess(pressure(500), facts, 0.0) == 0.0
    assert tolerated_excess(pressure(500, newcomer=None), facts, 0.4) == 0.0
    assert kv_cap(pressure(500), kv_high=0.95, excess_ratio=0.1) > 10 + 4
