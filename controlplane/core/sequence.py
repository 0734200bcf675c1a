"""Which of a publisher's events are new: duplicates are dropped, gaps are seen and may close late."""

from dataclasses import dataclass, field
from enum import Enum

_MOST_GAPS = 64


class Arrival(Enum):
    """What a sequence number tells."""

    NEW = "new"
    DUPLICATE = "duplicate"
    AFTER_GAP = "after_gap"  # new, but numbers before it are missing


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One publisher's numbers, which count from 1. ``missing`` holds (first, last) ranges, ascending."""

    expected: int = 1
    missing: list[tuple[int, int]] = field(default_factory=list)
    heard_at_ns: int = 0
    asked_at_ns: int = 0  # when its state was last requested
    unanswered: int = 0  # requests since it was last heard

    def note(self, number: int) -> Arrival:
        """Take ``number`` in."""
        if number == self.expected:
            self.expected += 1
            return Arrival.NEW
        if number > self.expected:
            self.missing.append((self.expected, number - 1))
            del self.missing[:-_MOST_GAPS]
            self.expected = number + 1
            return Arrival.AFTER_GAP
        return self._fill(number)

    def _fill(self, number: int) -> Arrival:
        for index, (first, last) in enumerate(self.missing):
            if first <= number <= last:
                parts = [(first, number - 1), (number + 1, last)]
                self.missing[index : index + 1] = [(a, b) for a, b in parts if a <= b]
                del self.missing[:-_MOST_GAPS]
                return Arrival.NEW
        return Arrival.DUPLICATE

    def is_past(self, number: int) -> bool:
        """Whether a later one than ``number``, which was taken in, is known; 0 is no number."""
        return 0 < number < self.expected - 1

    def resynced(self) -> None:
        """The publisher's whole state arrived: what is missing no longer matters."""
        self.missing.clear()
