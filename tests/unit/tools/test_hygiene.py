"""What a tool is called with: clean text, and a time where none is named."""

import logging

import pytest

from engine_hooks.tools.hygiene import Hygiene


def test_nothing_is_changed_unless_it_was_asked_for() -> None:
    hygiene = Hygiene.of({})
    assert hygiene == Hygiene()
    assert not hygiene.on
    assert hygiene.cleaned("a\0b") == "a\0b"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"PENSTOCK_TOOL_TIMEOUT_S": "90"}, Hygiene(timeout_s=90)),
        ({"PENSTOCK_TOOL_TIMEOUT_S": " 0.5 ", "PENSTOCK_TOOL_CLEAN": "On"}, Hygiene(timeout_s=0.5, clean=True)),
        ({"PENSTOCK_TOOL_CLEAN": "off"}, Hygiene()),
    ],
)
def test_the_environment_says_it(environment: dict[str, str], wanted: Hygiene) -> None:
    assert Hygiene.of(environment) == wanted


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1e9"])
def test_a_timeout_that_is_none_is_warned_of_and_left_off(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        assert Hygiene.of({"PENSTOCK_TOOL_TIMEOUT_S": text}) == Hygiene()
    assert "PENSTOCK_TOOL_TIMEOUT_S: expected seconds" in caplog.text


def test_clean_text_is_what_a_system_call_takes() -> None:
    hygiene = Hygiene(clean=True)
    assert hygiene.cleaned("ls\0 -l \udc80\ud83d\tü 😀\n") == "ls -l \tü 😀\n"
    told = {"command": "a\0", "args": ["b", "\ud800c"], "deep\0": {"n": 7, "x": None}}
    assert hygiene.cleaned(told) == {"command": "a", "args": ["b", "c"], "deep": {"n": 7, "x": None}}


def test_what_is_clean_stays_itself() -> None:
    hygiene = Hygiene(clean=True)
    for value in ("text", ["a", ["b"]], {"a": {"b": ["c"]}}, 7, None, ("a\0",)):
        assert hygiene.cleaned(value) is value
