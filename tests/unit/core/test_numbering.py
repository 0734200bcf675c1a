"""Which of the daemon's commands are remembered, by their numbers."""

import pytest

from controlplane.core.commands import Numbering


def test_the_numbers_of_a_life_are_beyond_those_of_the_one_before() -> None:
    numbering = Numbering(sent=7)
    numbering.begin(1000)
    assert numbering.next() == 1001


def test_a_life_whose_clock_was_set_back_counts_on_from_what_it_remembers() -> None:
    numbering = Numbering(sent=7000)
    numbering.begin(1000)
    assert numbering.next() == 7001


@pytest.mark.parametrize(
    ("number", "remembered"),
    [
        (0, False),  # nobody counted it
        (1, True),
        (7, True),  # the last that is remembered of the life before
        (8, False),  # was sent, and the machine lost it
        (1000, False),
        (1001, True),  # of this life
        (1002, False),  # of a daemon that came after this one
    ],
)
def test_what_is_remembered(number: int, remembered: bool) -> None:
    numbering = Numbering(sent=7)
    numbering.begin(1000)
    numbering.next()
    assert numbering.remembers(number) is remembered
