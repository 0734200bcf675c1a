"""A publisher of events: its name and the count of what it has published."""

from typing import Any


class Publisher:
    """Numbers events from 1; without a name it leaves them unnumbered (0)."""

    __slots__ = ("name", "sequence")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 0

    def stamp(self, now_ns: int) -> dict[str, Any]:
        """What the next event says of itself: whose it is, its number, and when it was."""
        if self.name:
            self.sequence += 1
        return {"publisher": self.name, "sequence": self.sequence, "at_ns": now_ns}
