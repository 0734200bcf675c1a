"""How sure a figure is."""

from math import nan

import pytest

from controlplane.lab.workload.interval import (
    Interval,
    drawn_interval,
    mean_interval,
    ratio_interval,
    t_quantile,
)


def test_a_mean_by_hand() -> None:
    """Mean 12, standard deviation 2, t(2) = 4.303: 4.303 * 2 / sqrt(3) = 4.97."""
    found = mean_interval([10.0, 12.0, 14.0])
    assert (found.value, round(found.high - 12, 2), round(12 - found.low, 2)) == (12.0, 4.97, 4.97)
    assert str(found) == "12.00 [7.03, 16.97]"


def test_a_single_value_has_no_interval() -> None:
    found = mean_interval([7.0])
    assert (found.value, found.is_known, str(found)) == (7.0, False, "7.00")
    assert not found.excludes(1.0)


def test_equal_values_are_sure() -> None:
    assert mean_interval([2.0, 2.0]).excludes(1.0)
    assert not mean_interval([2.0, 2.0]).excludes(2.0)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (10, 2.228), (11, 2.201), (15, 2.131), (24, 2.064), (60, 2.000), (10**6, 1.960)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_pairs_cancel_what_a_seed_does_to_both() -> None:
    """Half as long under every seed, however much the seeds differ."""
    found = ratio_interval([(10.0, 20.0), (50.0, 100.0), (500.0, 1000.0)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.excludes(1.0)


def test_a_ratio_and_its_inverse_say_the_same() -> None:
    pairs = [(10.0, 20.0), (30.0, 40.0), (45.0, 50.0)]
    one, other = ratio_interval(pairs), ratio_interval([(b, a) for a, b in pairs])
    assert one is not None
    assert other is not None
    assert (one.value, one.low, one.high) == pytest.approx((1 / other.value, 1 / other.high, 1 / other.low))


def test_what_has_no_ratio_is_left_out() -> None:
    assert ratio_interval([(0.0, 1.0), (1.0, 0.0)]) is None
    found = ratio_interval([(0.0, 1.0), (2.0, 1.0)])
    assert found is not None
    assert (found.value, found.is_known) == (2.0, False)
    wide = ratio_interval([(1e-300, 1.0), (1e300, 1.0)])
    assert wide is not None
    assert wide.high > 1e300


def test_of_draws_the_middle_counts_and_what_is_no_number_does_not() -> None:
    found = drawn_interval(50.0, [*range(101), nan])
    assert (found.low, found.high) == (2.5, 97.5)
    assert not drawn_interval(1.0, [nan]).is_known
    assert Interval(value=1.0, low=0.9, high=1.1).is_known
