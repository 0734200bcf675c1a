"""How late an event is told: beyond the quickest of its publisher's, whose clock is its own.

A publisher that was cut off tells afterwards what happened meanwhile. Its clock and ours differ by no more than
the least that was seen between them.
"""

from dataclasses import dataclass, field

_DRIFT = 10_000  # a clock may gain one part in so many on another
_MOST = 1024  # publishers; who was judged longest ago makes room


@dataclass(slots=True, kw_only=True)
class Lateness:
    """By publisher: the least difference between its clock and ours, and when it was judged last.

    Also of one that was taken for gone: who is cut off for long comes back, and then tells much at once.
    """

    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, publisher: str, at_ns: int, now_ns: int) -> None:
        """An event of the publisher's ``at_ns``, which is 0 where it did not say, was read at our ``now_ns``."""
        if not at_ns:
            return
        between_ns = now_ns - at_ns
        least_ns, judged_ns = self.seen.get(publisher, (between_ns, now_ns))
        self.seen[publisher] = (min(between_ns, least_ns + (now_ns - judged_ns) // _DRIFT), now_ns)
        if len(self.seen) > _MOST:
            del self.seen[min(self.seen, key=lambda name: self.seen[name][1])]

    def of(self, publisher: str, at_ns: int, now_ns: int) -> int:
        """Nanoseconds; 0 while nothing is known of its publisher."""
        if not at_ns or publisher not in self.seen:
            return 0
        return max(0, now_ns - at_ns - self.seen[publisher][0])
