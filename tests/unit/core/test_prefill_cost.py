"""The fitted cost of a prefill, and of having back what had left the device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimators.prefill_cost import EvictionCost, PrefillCost

LINEAR_NS, SQUARE_NS = 100_000, 20.0  # a token; a squared token


def test_a_curve_without_a_linear_part() -> None:
    cost = PrefillCost()
    cost.add(1000, 0, 1_000)
    cost.add(8000, 0, 64_000_000)
    assert cost.estimate_ns(4000) == pytest.approx(16_000_000, rel=0.01)


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


def test_loads_are_weighed_by_their_tokens_and_cost_no_more_than_computing() -> None:
    seen = EvictionCost()
    seen.add(100, 300, 30, 300)
    assert (seen.host_hit_ratio, seen.reload_cost_ratio) == (0.75, pytest.approx(0.1))
    seen.add(0, 300, 9000, 300)
    assert seen.reload_cost_ratio == 1.0
