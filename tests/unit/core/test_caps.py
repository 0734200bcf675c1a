"""W_cpu and the progressive W_kv, by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest

from controlplane.core.caps import NO_CAP, cpu_cap, kv_cap
from controlplane.core.types import Pressure


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
    slow = Pressure(cpus=cpus, tools_per_program=tools_per_program, tool_slowdown_ratio=1.2)
    assert cpu_cap(slow, slowdown_low=1.2) == cap
    assert cpu_cap(replace(slow, tool_slowdown_ratio=1.19), slowdown_low=1.2) == NO_CAP, "tools that only wait"


def pressure(total: int = 1000, demand: int = 0, mean: float = 50.0, active: int = 0) -> Pressure:
    return Pressure(
        kv_total_blocks=total,
        kv_demand_blocks=demand,
        kv_use_ratio=demand / total if total else 0.0,
        queued_blocks_mean=mean,
        programs_active=active,
    )


@pytest.mark.parametrize(
    ("seen", "cap"),
    [
        (pressure(total=0), NO_CAP),
        (pressure(mean=0.0), NO_CAP),
        (pressure(), 20),
        (pressure(demand=750, active=10), 15),  # s is 1 up to 0.80
        (pressure(demand=875, active=10), 11),  # s = 0.5: 0.5 * 125 / 50
        (pressure(demand=950, active=10), 10),  # s = 0
        (pressure(demand=1200, active=10), 10),
        (pressure(demand=2000, active=0), 1),
        (pressure(mean=5000.0), 1),
    ],
)
def test_kv_cap(seen: Pressure, cap: int) -> None:
    assert kv_cap(seen, kv_high=0.95) == cap


def test_admission_relaxes_without_a_step() -> None:
    fits = [kv_cap(pressure(total=100_000, demand=d, mean=10.0), kv_high=0.95) for d in range(0, 100_000, 500)]
    assert all(a >= b for a, b in pairwise(fits))
    assert max(a - b for a, b in pairwise(fits)) <= 120


@pytest.mark.parametrize(
    ("active", "demand", "footprint", "mean", "cap"),
    [
        (2, 100, 100, 10.0, 2 + 8),  # they will come to hold 200: 800 is left for programs of 100
        (2, 400, 100, 10.0, 2 + 6),  # they hold more than usual already
        (2, 100, 100, 200.0, 2 + 4),  # those that wait ask for more than usual
        (9, 100, 100, 10.0, 9),  # 900 of 1000: s = 1/3, and 33 blocks are no program
        (30, 0, 100, 10.0, 30),
    ],
)
def test_programs_count_with_what_they_usually_come_to_hold(
    active: int, demand: int, footprint: int, mean: float, cap: int
) -> None:
    seen = replace(pressure(demand=demand, mean=mean, active=active), kv_footprint_blocks=footprint)
    assert kv_cap(seen, kv_high=0.95) == cap
