"""The fitted cost of a prefill, and of having back what had left the device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.prefill_cost import Displaced, PrefillCost

LINEAR_NS, SQUARE_NS = 100_000, 20.0  # a token; a squared token


def cost_ns(new: int, cached: int = 0) -> int:
    return round(LINEAR_NS * new + SQUARE_NS * ((cached + new) ** 2 - cached**2))


def test_nothing_seen_costs_nothing() -> None:
    assert PrefillCost().estimate_ns(1000) == 0


def test_one_size_seen_is_taken_as_linear() -> None:
    cost = PrefillCost()
    for _ in range(3):
        cost.add(1000, 0, 5_000_000)
    assert cost.estimate_ns(2000) == 10_000_000


def test_a_quadratic_curve_is_found_again_from_fresh_prefills() -> None:
    cost = PrefillCost()
    for tokens in (1000, 2000, 4000, 8000):  # the paper's profile
        cost.add(tokens, 0, cost_ns(tokens))
    assert cost.estimate_ns(16_000) == pytest.approx(cost_ns(16_000), rel=1e-6)


def test_warm_returns_teach_the_cost_of_a_cold_one() -> None:
    cost = PrefillCost()
    for new, cached in ((300, 1000), (300, 6000), (700, 3000)):
        cost.add(new, cached, cost_ns(new, cached))
    assert cost.estimate_ns(7000) == pytest.approx(cost_ns(7000), rel=1e-6)


def test_a_curve_that_bends_down_is_taken_as_a_line() -> None:
    cost = PrefillCost()
    cost.add(1000, 0, 10_000_000)
    cost.add(8000, 0, 40_000_000)
    assert 0 < cost.estimate_ns(1000) < cost.estimate_ns(8000) < cost.estimate_ns(9000)


def test_a_curve_without_a_linear_part() -> None:
    cost = PrefillCost()
    cost.add(1000, 0, 1_000)
    cost.add(8000, 0, 64_000_000)
    assert cost.estimate_ns(4000) == pytest.approx(16_000_000, rel=0.01)


def test_what_is_old_fades() -> None:
    cost = PrefillCost()
    for _ in range(50):
        cost.add(1000, 0, 1_000_000)
    for _ in range(2000):
        cost.add(1000, 0, 3_000_000)
    assert cost.estimate_ns(1000) == pytest.approx(3_000_000, rel=0.01)


@given(
    seen=st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 200_000), st.integers(1, 10**12)), min_size=1, max_size=20
    )
)
def test_it_is_never_negative_and_never_falls(seen: list[tuple[int, int, int]]) -> None:
    cost = PrefillCost()
    for new, cached, duration_ns in seen:
        cost.add(new, cached, duration_ns)
    curve = [cost.estimate_ns(tokens) for tokens in (0, 1, 1000, 100_000)]
    assert curve[0] == 0
    assert curve == sorted(curve)


# What had left the device


def test_nothing_is_known_before_somebody_came_back() -> None:
    nothing = Displaced()
    assert (nothing.kept_ratio, nothing.load_ratio) == (0.0, 1.0)


def test_what_was_computed_again_was_not_kept() -> None:
    seen = Displaced()
    seen.add(1000, 0, 0, 0)
    assert (seen.kept_ratio, seen.load_ratio) == (0.0, 1.0)


def test_loads_are_weighed_by_their_tokens_and_cost_no_more_than_computing() -> None:
    seen = Displaced()
    seen.add(100, 300, 30, 300)
    assert (seen.kept_ratio, seen.load_ratio) == (0.75, pytest.approx(0.1))
    seen.add(0, 300, 9000, 300)
    assert seen.load_ratio == 1.0


def test_older_turns_fade() -> None:
    seen = Displaced()
    for _ in range(200):
        seen.add(1000, 0, 0, 0)
    for _ in range(200):
        seen.add(0, 1000, 100, 1000)
    assert seen.kept_ratio > 0.98
