"""Whose slot is taken back when somebody lacks room, or the pool is overfull."""

from collections.abc import Sequence

import pytest

from controlplane.core.model.commands import Command, Pause, Release
from controlplane.core.model.types import Pressure, Program, Status, seconds
from controlplane.core.policies.retention.overflow import pauses

NOW_NS = seconds(100)


def acting(name: str, keep: float, blocks: int = 10, **fields: object) -> Program:
    values = {
        "program_id": name,
        "root_id": name,
        "status": Status.ACTIVE,
        "kv_blocks": blocks,
        "gap_since_ns": seconds(90),
        "keep_ratio": keep,
    }
    return Program(**(values | fields))  # type: ignore[arg-type]


def gone(programs: Sequence[Program], demand: int = 0, total: int = 1000) -> str:
    lent = sum(program.kv_blocks for program in programs if program.lends)
    pressure = Pressure(kv_total_blocks=total, kv_demand_blocks=demand, kv_lent_blocks=lent)
    return " ".join(each.program_id for each in pauses(programs, pressure, NOW_NS))


THREE = [acting("dear", 3.0), acting("cheap", 0.5), acting("cheaper", 0.2)]


@pytest.mark.parametrize(
    ("demand", "names"), [(1001, "cheaper"), (1011, "cheaper cheap"), (1500, "cheaper cheap dear")]
)
def test_an_overfull_pool_takes_slots_back_whatever_they_are_worth(demand: int, names: str) -> None:
    assert gone(THREE, demand=demand) == names


def test_what_is_lent_is_not_in_the_demand_and_may_overfill_the_pool() -> None:
    lending = acting("lending", 0.1, blocks=100, lends=True)
    assert gone([*THREE, lending], demand=900) == ""
    assert gone([*THREE, lending], demand=901) == "lending"


def test_room_that_is_lent_by_whoever_may_not_leave_is_not_taken_back() -> None:
    waits_for_child = acting("p", 0.0, blocks=100, delegating=1, lends=True)
    assert gone([*THREE, waits_for_child], demand=950) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"status": Status.PAUSED},
        {"parent_id": "root"},
        {"open_turns": 1},
        {"queued_turns": 1},
        {"gap_since_ns": 0},
        {"quarantined": True},
        {"delegating": 1, "lends": True},
    ],
)
def test_who_does_not_rest_keeps_its_slot(fields: dict[str, object]) -> None:
    """One that waits for its child lends its room, and keeps the slot that the child rides."""
    assert gone([acting("p", 0.0, **fields)], demand=2000) == ""


def test_a_pin_goes_with_the_slot() -> None:
    def commands(until_ns: int) -> Sequence[Command]:
        pressure = Pressure(kv_total_blocks=1000, kv_demand_blocks=1005)
        return pauses([acting("p", 0.5, retained_until_ns=until_ns)], pressure, NOW_NS)

    assert [type(each) for each in commands(NOW_NS + 1)] == [Pause, Release]
    assert [type(each) for each in commands(NOW_NS)] == [Pause]
    assert commands(0)[0].reason == "the pool is overfull: its context brings 0.50 of its cost"
