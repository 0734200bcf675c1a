"""Text that strangers chose is shown as text, and two names stay two."""

import pytest
from hypothesis import given
from support import strangers

from controlplane.core.text import is_printable, made_good, printable
from controlplane.core.types import MOST_NAME


@given(strangers.names)
def test_nothing_that_is_shown_is_obeyed(text: str) -> None:
    for shown in (printable(text), made_good(text)):
        assert "\n" not in shown + strangers.stray(shown)
        assert is_printable(shown)
        assert printable(shown) == shown
    assert made_good(made_good(text)) == made_good(text)
    assert len(made_good(text)) <= MOST_NAME


def test_two_names_stay_two_and_good_ones_as_they_are() -> None:
    assert len({made_good(name) for name in strangers.NAMES.values()}) == len(strangers.NAMES)
    for name in ("", "session-1", "日本語", "é", "e\u0301", "مرحبا", "नमस्ते", "[/nope]", "a b", "👍"):
        assert made_good(name) == printable(name) == name


@pytest.mark.parametrize("marks", [4, 5, 500])
def test_marks_are_not_heaped(marks: int) -> None:
    assert printable("e" + "\u0301" * marks) == "e" + "\u0301" * 4
