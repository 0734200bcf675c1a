"""What a check of ``penstock doctor`` finds."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    LOOK = "look"  # it works, but you may want to know
    BAD = "bad"  # it does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``advice`` says what to do, and is empty if there is nothing to do."""

    what: str
    state: State
    found: str
    advice: str = ""


def ok(what: str, found: str) -> Finding:
    """It works."""
    return Finding(what=what, state=State.OK, found=found)


def look(what: str, found: str, advice: str) -> Finding:
    """It works, with something to know."""
    return Finding(what=what, state=State.LOOK, found=found, advice=advice)


def bad(what: str, found: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(what=what, state=State.BAD, found=found, advice=advice)
