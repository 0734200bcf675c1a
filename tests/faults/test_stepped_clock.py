"""A wall clock that is years off: of a machine without a battery, or before it was set."""

from dataclasses import replace
from pathlib import Path

import pytest

from .faults import Fault
from .world import Plan, World, plan_of

YEAR_NS = 365 * 86_400 * 1_000_000_000


def plan(*faults: Fault) -> Plan:
    """Few programs, whose clients tell of their tools or do not."""
    return replace(plan_of(1), servers=1, shared_place=False, is_embedded=True, programs=15, faults=faults)


@pytest.mark.parametrize("years", [-56, -2, 200])
def test_a_node_starts_with_any_clock(tmp_path: Path, years: int) -> None:
    """Before 2025 the daemon's own samples were told at negative times, so that it believed none of them."""
    world = World(plan(), tmp_path)
    world.wall_step_ns = years * YEAR_NS
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    assert world.auditor.entries >= 15


@pytest.mark.parametrize("is_kept", [True, False], ids=["with its snapshot", "without"])
@pytest.mark.parametrize("years", [(-56, 56), (0, 10), (56, -112)], ids=["back, then set right", "ahead", "both"])
def test_a_clock_may_jump_by_years_while_the_daemon_is_away(
    tmp_path: Path, years: tuple[int, int], is_kept: bool
) -> None:
    kind = "daemon is killed" if is_kept else "snapshot is damaged"
    faults = (
        Fault(kind=kind, at_s=15.0, for_s=0.5, chance=0.0),
        Fault(kind=kind, at_s=50.0, for_s=0.5, chance=0.0),
    )
    world = World(plan(*faults), tmp_path)
    for fault, by in zip(faults, years, strict=True):
        step_ns = by * YEAR_NS
        world.scheduler.after(
            fault.at_s + 0.1, lambda ns=step_ns: setattr(world, "wall_step_ns", world.wall_step_ns + ns)
        )
    try:
        world.run()
    finally:
        world.end()
    assert not world.auditor.violations
    assert world.auditor.entries >= 15
    cycle_ns = world.daemons[0].daemon.controller.ledger.estimates.lives.cycle_ns("")
    assert cycle_ns < 600 * 1e9, "no program rested for years"
