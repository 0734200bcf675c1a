"""The CPU cap, the engines' rooms and what the forecast may exceed, by hand."""

from dataclasses import replace

import pytest
from made_facts import MadeFacts

from controlplane.core.caps import NO_CAP, cpu_cap, rooms, tolerated_excess
from controlplane.core.types import Pressure, Replica, seconds


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


def test_what_is_left_on_each_engine_beside_what_is_needed_now() -> None:
    assert rooms(Pressure(kv_total_blocks=100, kv_demand_blocks=70)) == (30,)
    assert rooms(Pressure(kv_total_blocks=100, kv_demand_blocks=170)) == (0,)
    replicas = (
        Replica(name="a", total_blocks=100, demand_blocks=120),
        Replica(name="b", total_blocks=100, demand_blocks=40),
        Replica(name="c"),  # it has not told its size
    )
    assert rooms(Pressure(kv_total_blocks=200, kv_demand_blocks=160, replicas=replicas)) == (0, 60)


# A context that takes 0.88 s to compute again holds up 10 turns that run; a turn's own part of the engine's 4.4 s
# is 0.44 s.
FACTS = {
    "again_ns": seconds(0.88),
    "turns_running": 10.0,
    "turn_service_ns": seconds(4.4),
}


def test_the_excess_is_what_computing_it_again_may_cost() -> None:
    """The fourth power: an engine that has no time to spare for contexts that were evicted is not overfilled."""
    later = 0.4 * 0.5**4
    assert tolerated_excess(MadeFacts(**FACTS), 0.4) == pytest.approx((later, later * later))


def test_at_most_half_may_be_too_much() -> None:
    """0.4 of the demand at one turn that has the engine for itself would be 0.4 x 5^4."""
    assert tolerated_excess(MadeFacts(**FACTS | {"turns_running": 0.5}), 0.4) == (0.5, 0.5)


def test_less_is_tolerated_now_than_is_over_the_time_to_come() -> None:
    later, now = tolerated_excess(MadeFacts(**FACTS | {"turns_running": 4.5}), 0.4)
    assert (later, now) == (0.5, pytest.approx((0.4 * (10 / 9) ** 4) ** 2))


def test_a_turn_is_worth_what_it_would_take_alone() -> None:
    """Where sharing makes turns four times as long, what is gained by one more is a quarter of one."""
    (shared, _), (alone, _) = (tolerated_excess(MadeFacts(**FACTS), 0.4, alone_ratio=r) for r in (0.25, 1.0))
    assert shared == pytest.approx(alone / 4**4)


@pytest.mark.parametrize("unknown", [{"again_ns": 0}, {"turn_service_ns": 0}])
def test_nothing_is_tolerated_while_it_is_not_known_what_that_costs(unknown: dict[str, float]) -> None:
    assert tolerated_excess(MadeFacts(**FACTS | unknown), 0.4) == (0.0, 0.0)


# All that left the device lies below it, in memory of twice the pool.
BELOW = FACTS | {"kept_ratio": 1.0}


def test_where_loading_costs_nothing_all_that_memory_below_the_device_keeps_is_tolerated() -> None:
    facts = MadeFacts(**BELOW | {"load_ratio": 0.0})
    assert tolerated_excess(facts, 0.1, below_ratio=2.0) == (2.0, 2.0)


def test_loading_has_its_price_as_computing_has() -> None:
    facts = MadeFacts(**BELOW | {"load_ratio": 0.5})
    assert tolerated_excess(facts, 0.1, below_ratio=2.0) == pytest.approx((0.1, 0.01))


@pytest.mark.parametrize("little", [{"kept_ratio": 0.0}, {"kept_ratio": 0.5, "load_ratio": 0.0}])
def test_memory_below_that_lets_much_go_is_not_counted_on(little: dict[str, float]) -> None:
    """What is displaced next is lost there, whatever the mean: half of it kept is a 256th of the room."""
    without = tolerated_excess(MadeFacts(**FACTS), 0.1)
    found = tolerated_excess(MadeFacts(**BELOW | {"load_ratio": 1.0} | little), 0.1, below_ratio=2.0)
    assert found == pytest.approx(without, abs=2 / 256)


def test_nothing_is_tolerated_where_nothing_may_be_wasted() -> None:
    assert tolerated_excess(MadeFacts(**FACTS), 0.0) == (0.0, 0.0)
