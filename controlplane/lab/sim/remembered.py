"""Tables of what was said of programs, which nobody takes back when they end."""

from typing import TypeVar

_MOST_PROGRAMS = 65_536

V = TypeVar("V")


def remember(table: dict[str, V], key: str, value: V) -> None:
    """Set, and forget the oldest key of a table that has grown too long."""
    table.pop(key, None)
    table[key] = value
    if len(table) > _MOST_PROGRAMS:
        del table[next(iter(table))]
