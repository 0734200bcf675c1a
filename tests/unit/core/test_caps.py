"""The CPU cap, the engines' rooms and what the forecast may exceed, by hand."""

import pytest
from made_facts import MadeFacts

from controlplane.core.model.types import seconds
from controlplane.core.policies.caps import tolerated_excess

# A context that takes 0.88 s to compute again holds up 10 turns that run; a turn's own part of the engine's 4.4 s
# is 0.44 s.
FACTS = {
    "recompute_ns": seconds(0.88),
    "turns_running": 10.0,
    "turn_service_ns": seconds(4.4),
}


def test_at_most_half_may_be_too_much() -> None:
    """0.4 of the demand at one turn that has the engine for itself would be 0.4 x 5^4."""
    assert tolerated_excess(MadeFacts(**FACTS | {"turns_running": 0.5}), 0.4) == (0.5, 0.5)


def test_less_is_tolerated_now_than_is_over_the_time_to_come() -> None:
    later, now = tolerated_excess(MadeFacts(**FACTS | {"turns_running": 4.5}), 0.4)
    assert (later, now) == (0.5, pytest.approx((0.4 * (10 / 9) ** 4) ** 2))


# All that left the device lies below it, in memory of twice the pool.
BELOW = FACTS | {"host_hit_ratio": 1.0}


def test_where_loading_costs_nothing_all_that_memory_below_the_device_keeps_is_tolerated() -> None:
    facts = MadeFacts(**BELOW | {"reload_cost_ratio": 0.0})
    assert tolerated_excess(facts, 0.1, below_ratio=2.0) == (2.0, 2.0)


def test_loading_has_its_price_as_computing_has() -> None:
    facts = MadeFacts(**BELOW | {"reload_cost_ratio": 0.5})
    assert tolerated_excess(facts, 0.1, below_ratio=2.0) == pytest.approx((0.1, 0.01))
