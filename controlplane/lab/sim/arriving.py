"""Which programs arrive next: each at its time, one as another ends, or a batch once all of the last have ended."""

from collections.abc import Iterator, Sequence
from itertools import islice

from controlplane.lab.sim.session import Session


class Arriving:
    """Roots in order. ``arrivals_ns``: when each comes; None: ``at_once`` of them, and others as those end.

    ``in_batches``: the next ``at_once`` come when all have ended, as a trainer's steps do.
    """

    def __init__(
        self, sessions: Sequence[Session], arrivals_ns: Sequence[int] | None, at_once: int, *, in_batches: bool
    ) -> None:
        self._roots = [session for session in sessions if session.parent is None]
        self._times_ns = arrivals_ns
        self._at_once, self._in_batches = at_once, in_batches
        self._left: Iterator[Session] = iter(self._roots if arrivals_ns is None else ())
        self._running = 0

    def at_first(self) -> list[tuple[int, Session]]:
        """With the times at which they come."""
        if self._times_ns is not None:
            return list(zip(self._times_ns, self._roots, strict=True))
        return [(0, session) for session in self._more(self._at_once)]

    def as_one_ends(self) -> list[Session]:
        """Those who come now, as a root has ended."""
        self._running -= 1
        if self._in_batches:
            return [] if self._running else self._more(self._at_once)
        return self._more(1)

    def _more(self, count: int) -> list[Session]:
        found = list(islice(self._left, count))
        self._running += len(found)
        return found
