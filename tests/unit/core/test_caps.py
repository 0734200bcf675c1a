"""W_cpu and W_kv, by hand."""

from dataclasses import replace

import pytest

from controlplane.core.caps import NO_CAP, cpu_cap, kv_cap
from controlplane.core.forecast import POINTS, Growing
from controlplane.core.types import Pressure

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
