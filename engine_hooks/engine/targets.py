"""What a plugin needs of its engine: functions that it hooks or calls, with the parameters it relies on.

A newer engine that still has them works; one that has not is found out before anything is hooked.
"""

from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """What can work or be left out on its own. Without the probe nothing does."""

    PROBE = "probe"
    GATE = "gate"
    PINS = "pins"
    HOST = "host"
    RANKS = "ranks"
    CHUNKS = "chunks"
    DISAGGREGATION = "disaggregation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function or class of the engine.

    ``first`` are its first parameters, in order, since hooks read them by position; ``has`` may stand anywhere.
    """

    feature: Feature
    path: str
    first: tuple[str, ...] = ()
    has: tuple[str, ...] = ()


def one(feature: Feature, path: str, *first: str, has: tuple[str, ...] = ()) -> Target:
    """The target there."""
    return Target(feature=feature, path=path, first=first, has=has)
