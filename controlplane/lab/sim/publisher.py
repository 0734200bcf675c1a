"""A publisher of events: its name and the count of what it has published."""


class Publisher:
    """Numbers events from 1; without a name it leaves them unnumbered (0)."""

    __slots__ = ("name", "sequence")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 0

    def next(self) -> int:
        """The next event's sequence number."""
        if self.name:
            self.sequence += 1
        return self.sequence
