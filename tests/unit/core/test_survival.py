"""Turns left by those that ended and those that still run; worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimators.survival import Survival, more_turns


def lived(survival: Survival, *programs: int) -> None:
    """Programs that ran one after the other and ended after so many turns."""
    for turns in programs:
        for each in range(1, turns):
            survival.observe_survival(each)
        survival.ended(turns)


def test_who_was_wrongly_taken_to_have_ended_is_forgotten() -> None:
    survival = Survival()
    lived(survival, 3)
    assert survival.left(1)[1] == 2.0
    survival.undo_end(3)
    assert survival.left(3) == (0.0, 0.0), "its fate is open"
    survival.undo_end(3)
    survival.undo_end(99)
    assert survival.left(3) == (0.0, 0.0)
    survival.observe_survival(3)
    assert survival.left(1)[1] == pytest.approx(2 + 1 + more_turns(4))


def test_a_run_of_very_many_turns_is_not_remembered_turn_by_turn() -> None:
    survival = Survival()
    survival.observe_survival(10**6)
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
