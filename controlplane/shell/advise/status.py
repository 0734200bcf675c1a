"""What automatic advice tells of itself."""

from dataclasses import dataclass

TRIED, KEPT, TAKEN_BACK = "tried", "kept", "taken back"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A step that was made, kept or taken back. ``predicted``, ``low`` and ``high`` are of the goal's change.

    ``measured`` is its change at an equal load, where ``is_measured``.
    """

    at_ns: int
    outcome: str  # tried, kept or taken back
    key: str
    before: float
    after: float
    reason: str
    goal: str
    predicted: float
    low: float
    high: float
    measured: float = 0.0
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseStatus:
    """One look at it. ``in_force``: what it has changed, each as KEY = VALUE, as a file may keep it."""

    goal: str
    phase: str  # rests, listens, asks, tries or judges
    reason: str
    until_ns: int  # it rests; 0: it does not
    heard_ns: int  # without a gap, of the stretch that is wanted
    wanted_ns: int
    trying: str  # the step in force that is not judged, as KEY = VALUE; empty: there is none
    in_force: tuple[str, ...]
    tried: int
    kept: int
    undone: int
    latest: tuple[SettingChange, ...]  # the newest last
