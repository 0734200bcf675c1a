"""How sure a figure is."""

from math import nan

import pytest

from controlplane.lab.workload.interval import drawn_interval, mean_interval, ratio_interval, t_quantile


def test_a_mean_by_hand() -> None:
    """Mean 12, standard deviation 2, t(2) = 4.303: 4.303 * 2 / sqrt(3) = 4.97."""
    found = mean_interval([10.0, 12.0, 14.0])
    assert str(found) == "12.00 [7.03, 16.97]"
    assert found.excludes(7.0)
    assert not found.excludes(8.0)
    assert not mean_interval([1.0]).excludes(7.0)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (10, 2.228), (11, 2.201), (24, 2.064), (10**6, 1.960)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_a_ratio_is_of_pairs_whatever_their_order_and_leaves_out_what_has_none() -> None:
    """Half as long under every seed, however much the seeds differ."""
    alike = ratio_interval([(10.0, 20.0), (50.0, 100.0), (500.0, 1000.0), (0.0, 1.0), (1.0, 0.0)])
    assert (alike.value, alike.low, alike.high) == pytest.approx((0.5, 0.5, 0.5))
    pairs = [(10.0, 20.0), (30.0, 40.0), (45.0, 50.0)]
    one, other = ratio_interval(pairs), ratio_interval([(b, a) for a, b in pairs])
    assert (one.value, one.low, one.high) == pytest.approx((1 / other.value, 1 / other.high, 1 / other.low))
    assert ratio_interval([(0.0, 1.0), (1.0, 0.0)]) is None
    assert ratio_interval([(1e-300, 1.0), (1e300, 1.0)]).high > 1e300


def test_of_draws_the_middle_counts_and_what_is_no_number_does_not() -> None:
    found = drawn_interval(50.0, [*range(101), nan])
    assert (found.low, found.high) == (2.5, 97.5)
    assert not drawn_interval(1.0, [nan]).is_known
