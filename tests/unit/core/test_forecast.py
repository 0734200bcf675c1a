"""The forecast of KV demand, with curves worked out by hand."""

import pytest

from controlplane.core.forecast import POINTS, Growing, demand, needs


def test_a_program_grows_evenly_to_its_last_context_and_is_gone() -> None:
    curve = demand([Growing(100, 260)])  # 10 blocks a point
    assert curve == tuple(100 + 10 * point for point in range(1, POINTS + 1))


def test_a_program_that_is_half_way_is_gone_when_a_new_one_is_half_way() -> None:
    curve = demand([Growing(180, 260, 0.5)])
    assert curve[: POINTS // 2] == tuple(180 + 10 * point for point in range(1, POINTS // 2 + 1))
    assert curve[POINTS // 2 :] == (0,) * (POINTS // 2)


def test_a_program_that_outlives_the_grid_is_seen_to_its_end() -> None:
    curve = demand([Growing(100, 420, 2.0)])
    assert curve == tuple(100 + 10 * point for point in range(1, POINTS + 1))


def test_programs_of_different_age_need_less_than_as_many_of_one_age() -> None:
    of_one_age = demand([Growing(0, 160)] * 4)
    of_all_ages = demand([Growing(held, 160, 1 - held / 160) for held in (0, 40, 80, 120)])
    assert max(of_one_age) == 4 * 160
    assert max(of_all_ages) == 160 + 120 + 80 + 40  # when the oldest ends


def test_a_shared_prefix_counts_once() -> None:
    assert demand([Growing(0, 0)] * 3, shared_blocks=50) == (50,) * POINTS


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
