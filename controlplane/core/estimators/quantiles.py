"""The latest values of one kind, such as durations in nanoseconds or the turns that programs lived."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Durations:
    """The most recent values, also in ascending order."""

    capacity: int = 256
    recent: list[int] = field(default_factory=list)  # a ring once it is full
    oldest: int = 0
    ascending: list[int] = field(default_factory=list)

    def add(self, value: int) -> None:
        """The oldest makes room for it."""
        if len(self.recent) < self.capacity:
            self.recent.append(value)
        else:
            del self.ascending[bisect_left(self.ascending, self.recent[self.oldest])]
            self.recent[self.oldest] = value
            self.oldest = (self.oldest + 1) % self.capacity
        insort(self.ascending, value)

    @property
    def median_ns(self) -> int:
        """0 while nothing was seen."""
        return self.ascending[len(self.ascending) // 2] if self.ascending else 0
