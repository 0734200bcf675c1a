"""Which of the daemon's commands are remembered, by their numbers."""

import pytest

from controlplane.core.model.commands import Numbering


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
