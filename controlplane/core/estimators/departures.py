"""How fast a node gets done with programs while others wait, and so how long one that comes now will wait.

By Little's law whoever has k programs before it waits for k ends. Only ends while somebody waits tell how fast the
node is: others tell how many come. So time is counted while there is a queue, and ends are stamped with that.
"""

from dataclasses import dataclass, field

from controlplane.core.estimators.moving_average import MovingAverage

_FEWEST = 8  # ends, before anything is said
_MOST = 64  # that are remembered
_WEIGHT = 0.05


@dataclass(slots=True, kw_only=True)
class Departures:
    """Programs that ended while others waited for a slot."""

    queued_ns: int = 0  # for how long somebody has waited, in all
    ends_ns: list[int] = field(default_factory=list)  # the latest, in that time
    promised: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_WEIGHT, settle=True))  # ns
    missed: MovingAverage = field(default_factory=lambda: MovingAverage(weight=_WEIGHT, settle=True))  # by how many

    def passed(self, elapsed_ns: int) -> None:
        """Somebody has waited in this time."""
        self.queued_ns += max(0, elapsed_ns)

    def ended(self) -> None:
        """A program ended while others waited."""
        self.ends_ns.append(self.queued_ns)
        del self.ends_ns[:-_MOST]

    def undo_end(self) -> None:
        """One that counts as ended had not."""
        if self.ends_ns:
            self.ends_ns.pop()

    @property
    def each_ns(self) -> float:
        """The time between two ends; 0 while too few were seen. A node that ends nobody any more is slow, too."""
        ends = self.ends_ns
        if len(ends) < _FEWEST:
            return 0.0
        return (self.queued_ns - ends[0]) / len(ends)

    def waited(self, promised_ns: int, actual_ns: int) -> None:
        """Who was told to wait about so long got its slot."""
        self.promised.add(promised_ns)
        self.missed.add(abs(actual_ns - promised_ns))
