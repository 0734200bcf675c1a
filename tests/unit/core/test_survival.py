"""Turns left by those that ended and those that still run; worked out by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.survival import Survival, more_turns


def lived(survival: Survival, *programs: int) -> None:
    """Programs that ran one after the other and ended after so many turns."""
    for turns in programs:
        for each in range(1, turns):
            survival.went_on(each)
        survival.ended(turns)


def test_of_nothing_nothing_is_told() -> None:
    assert Survival().left(0) == (0.0, 0.0)
    assert Survival().left(7) == (0.0, 0.0)


def test_turns_left_are_the_mean_of_those_that_reached_as_many() -> None:
    survival = Survival()
    lived(survival, 2, 4, 6)
    assert survival.left(0)[1] == pytest.approx(4, rel=0.01)
    assert survival.left(2)[1] == pytest.approx((0 + 2 + 4) / 3, rel=0.02)
    assert survival.left(6) == (1.0, 0.0)
    assert survival.left(7) == (0.0, 0.0), "nobody got there"


def test_who_still_runs_counts_as_one_that_goes_on() -> None:
    """One ended after two turns, and three are at their sixth: a mean over the ended would be two."""
    survival = Survival()
    lived(survival, 2)
    for _ in range(3):
        for turns in range(1, 6):
            survival.went_on(turns)
    assert survival.left(5)[1] == pytest.approx(1 + more_turns(6)), "as many again as nobody has seen the end of"
    assert survival.left(0)[1] == pytest.approx(2 + 0.75 * (4 + more_turns(6)), rel=0.02)


def test_what_was_seen_lately_counts_most() -> None:
    survival = Survival()
    lived(survival, *[2] * 200)
    assert survival.left(0)[1] == pytest.approx(2)
    lived(survival, *[10] * 300)
    assert survival.left(0)[1] > 9


def test_who_was_wrongly_taken_to_have_ended_is_forgotten() -> None:
    survival = Survival()
    lived(survival, 3)
    assert survival.left(1)[1] == 2.0
    survival.revived(3)
    assert survival.left(3) == (0.0, 0.0), "its fate is open"
    survival.revived(3)
    survival.revived(99)
    assert survival.left(3) == (0.0, 0.0)
    survival.went_on(3)
    assert survival.left(1)[1] == pytest.approx(2 + 1 + more_turns(4))


def test_a_run_of_very_many_turns_is_not_remembered_turn_by_turn() -> None:
    survival = Survival()
    survival.went_on(10**6)
    survival.ended(0)
    assert survival.fates == []


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(0, 45))
def test_it_is_the_mean_residual_life_where_all_have_ended(programs: list[int], reached: int) -> None:
    survival = Survival()
    lived(survival, *programs)
    beyond = [turns - reached for turns in programs if turns >= max(1, reached)]
    seen, mean = survival.left(reached)
    if beyond:
        assert mean == pytest.approx(sum(beyond) / len(beyond), rel=0.3, abs=0.3), "but for the fading"
        assert seen == pytest.approx(len(beyond), rel=0.15)
    else:
        assert seen == 0.0


def test_it_is_unbiased_while_the_short_ones_have_ended_and_the_long_ones_have_not() -> None:
    """Half of the programs have three turns, half have thirty, and all are at their tenth or over."""
    survival, dice = Survival(), random.Random(1)
    for _ in range(100):
        long = dice.random() < 0.5
        for turns in range(1, 10 if long else 3):
            survival.went_on(turns)
        if not long:
            survival.ended(3)
    assert survival.left(0)[1] == pytest.approx(0.5 * 3 + 0.5 * (9 + 1 + more_turns(10)), rel=0.15)
    assert survival.left(3)[1] > 4
