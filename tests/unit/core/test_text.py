"""Text that strangers chose is shown as text, and two names stay two."""

from hypothesis import given
from support import strangers

from controlplane.core.model.text import is_printable, printable, sanitize
from controlplane.core.model.types import MOST_NAME


@given(strangers.names)
def test_nothing_that_is_shown_is_obeyed(text: str) -> None:
    for shown in (printable(text), sanitize(text)):
        assert "\n" not in shown + strangers.stray(shown)
        assert is_printable(shown)
        assert printable(shown) == shown
    assert sanitize(sanitize(text)) == sanitize(text)
    assert len(sanitize(text)) <= MOST_NAME


def test_two_names_stay_two_and_good_ones_as_they_are() -> None:
    assert len({sanitize(name) for name in strangers.NAMES.values()}) == len(strangers.NAMES)
    for name in ("", "session-1", "日本語", "é", "e\u0301", "مرحبا", "नमस्ते", "[/nope]", "a b", "👍"):
        assert sanitize(name) == printable(name) == name
