"""The forecast of KV demand, with curves worked out by hand."""

import pytest

from controlplane.core.estimators.demand_curve import POINTS, Growing, demand, needs


def test_a_program_that_should_be_gone_is_there_for_one_more_point_and_does_not_shrink() -> None:
    assert demand([Growing(90, 50, 0.0)]) == (90,) + (0,) * (POINTS - 1)


@pytest.mark.parametrize(
    "program", [Growing(10, 170), Growing(10, 90, 0.5), Growing(90, 50, 0.0), Growing(5, 9, 3.0)]
)
def test_what_one_needs_is_what_it_adds_to_the_demand(program: Growing) -> None:
    others = [Growing(100, 260), Growing(40, 80, 0.3)]
    added = [more - before for more, before in zip(demand([*others, program]), demand(others), strict=True)]
    assert needs(program) == pytest.approx(added, abs=1), "but for whole blocks"


def test_who_has_ended_needs_nothing() -> None:
    assert needs(Growing(10, 90, 0.5)) == tuple(10 + 10 * point for point in range(1, 9)) + (0.0,) * 8
