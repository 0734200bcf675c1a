"""Whose slot is taken back when somebody lacks room, or the pool is overfull."""

from collections.abc import Sequence

import pytest
from made_facts import MadeFacts

from controlplane.core.commands import Command, Pause, Release
from controlplane.core.retention.overflow import keep_ratio, pauses
from controlplane.core.types import Pressure, Program, Status, seconds

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


def test_keeping_is_worth_the_rate_of_a_return_times_what_it_saves_by_the_block() -> None:
    """1,000 tokens take 1 s again, which would hold up 500 blocks; half of such gaps end in 10 s, for 50 blocks."""
    facts = MadeFacts(prefill_ns_per_token=1_000_000, rates={"p": 0.5 / seconds(10)})
    program = acting("p", -1.0, blocks=50, context_tokens=1000)
    assert keep_ratio(program, facts, 500, NOW_NS) == pytest.approx(0.05 * 1 * 500 / 50)
    assert keep_ratio(acting("p", -1.0, blocks=0), facts, 500, NOW_NS) == 0.0


def test_a_context_that_memory_below_the_device_would_keep_is_worth_less_on_it() -> None:
    """Four fifths of what leaves is found there, and loading takes a quarter of computing: 0.4 of the price."""
    facts = MadeFacts(
        prefill_ns_per_token=1_000_000, rates={"p": 0.5 / seconds(10)}, kept_ratio=0.8, load_ratio=0.25
    )
    program = acting("p", -1.0, blocks=50, context_tokens=1000)
    assert keep_ratio(program, facts, 500, NOW_NS) == pytest.approx(0.05 * 0.4 * 500 / 50)


THREE = [acting("dear", 3.0), acting("cheap", 0.5), acting("cheaper", 0.2)]


def test_nobody_goes_while_there_is_room() -> None:
    assert gone(THREE, demand=1000) == ""


def test_nobody_goes_while_the_pools_size_is_unknown() -> None:
    assert gone(THREE, demand=5, total=0) == ""


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


def test_the_prefix_that_is_shared_stays_for_the_others() -> None:
    """Of 10 blocks 8 are the others' too: for 5 that lack three have to go, and the dear one may not."""
    shared = [
        acting(name, keep, shared_blocks=8) for name, keep in (("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.4))
    ]
    assert gone([*shared, THREE[0]], demand=1005) == "a b c"


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


def test_whose_gap_has_just_begun_goes_last() -> None:
    """It is weighed when the control interval ends; most tools are over by then."""
    programs = [acting("begun", -1.0), acting("dear", 9.0)]
    assert gone(programs, demand=1001) == "dear"
    assert gone(programs, demand=1011) == "dear begun"


def test_not_very_many_slots_are_taken_back_in_one_tick() -> None:
    many = [acting(f"p{number:03}", 0.5, blocks=1) for number in range(100)]
    assert gone(many, demand=9000).split() == [f"p{number:03}" for number in range(64)]


def test_a_pin_goes_with_the_slot() -> None:
    def commands(until_ns: int) -> Sequence[Command]:
        pressure = Pressure(kv_total_blocks=1000, kv_demand_blocks=1005)
        return pauses([acting("p", 0.5, retained_until_ns=until_ns)], pressure, NOW_NS)

    assert [type(each) for each in commands(NOW_NS + 1)] == [Pause, Release]
    assert [type(each) for each in commands(NOW_NS)] == [Pause]
    assert commands(0)[0].reason == "the pool is overfull: its context brings 0.50 of its cost"
