"""The forecast of KV demand, with curves worked out by hand."""

import pytest

from controlplane.core.forecast import POINTS, Growing, Growth, demand, fitting


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


@pytest.mark.parametrize(("level", "count"), [(0, 10), (500, 5), (901, 0), (5000, 0)])
def test_as_many_fit_as_end_within_the_room(level: int, count: int) -> None:
    assert fitting((level,) * POINTS, Growing(10, 100), 1000) == count


def test_somebody_who_needs_nothing_counts_as_a_block() -> None:
    assert fitting((0,) * POINTS, Growing(0, 0), 7.0) == 7


def test_before_anything_is_seen_growth_is_supposed() -> None:
    growth = Growth()
    assert growth.expected(1.0) == pytest.approx(4.0)
    assert growth.expected(8.0) == pytest.approx(1.25 * 8.0), "more than it has reached"
    assert growth.lifetime_turns == 10


def test_turns_tell_of_growth_before_any_program_has_ended() -> None:
    growth = Growth()
    growth.add_turn(0.5)
    growth.add_turn(0.1)
    assert growth.expected(1.0) == pytest.approx(1.0 + 10 * 0.3)


def test_programs_that_ended_outweigh_what_was_supposed() -> None:
    growth = Growth()
    growth.add(10.0, turns=50)
    assert growth.expected(1.0) == pytest.approx((3 * 4.0 + 10.0) / 4)
    assert growth.lifetime_turns == pytest.approx((3 * 10 + 50) / 4)
    for _ in range(96):
        growth.add(10.0, turns=50)
    assert growth.expected(1.0) == pytest.approx((3 * 4.0 + 97 * 10.0) / 100)
    assert growth.lifetime_turns == pytest.approx((3 * 10 + 97 * 50) / 100)


def test_who_has_grown_is_compared_with_those_who_grew_as_much() -> None:
    growth = Growth()
    for ratio in (2.0,) * 5 + (6.0,) * 4 + (10.0,):
        growth.add(ratio, turns=10)
    assert growth.expected(2.0) == pytest.approx((3 * 4.0 + 4 * 6.0 + 10.0) / 8)
    assert growth.expected(6.0) == pytest.approx((3 * 7.5 + 10.0) / 4)
    assert growth.expected(10.0) == pytest.approx(12.5), "beyond all that ended"


def test_growth_remembers_the_latest_256() -> None:
    growth = Growth()
    for ratio in (2.0,) * 256 + (5.0,) * 256:
        growth.add(ratio, turns=10)
    assert growth.expected(1.0) == pytest.approx((3 * 4.0 + 256 * 5.0) / 259)
    assert len(growth.ascending) == len(growth.recent) == 256
