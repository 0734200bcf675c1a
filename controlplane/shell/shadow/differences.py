"""Where a shadow decides otherwise than the controller in force: counted by kind, the last few kept."""

from collections import deque
from dataclasses import dataclass, field

from controlplane.core.types import NANOSECONDS_PER_SECOND

_KEPT = 16


@dataclass(slots=True, kw_only=True)
class DifferenceCounts:
    """Decisions by how the two compare."""

    same: int = 0
    earlier: int = 0  # it let a program in before the one in force did
    later: int = 0  # it would have held a program that the one in force let in
    order: int = 0  # of the later ones: it would have let another program in first
    slot_taken: int = 0  # it would have taken a slot back
    slot_kept: int = 0  # it would have left a slot that the one in force took back
    retained: int = 0  # it would have kept a context that the one in force gave up
    not_retained: int = 0  # it would have given a context up
    ttl: int = 0  # both keep it, for times that differ by more than a tenth
    moved: int = 0  # it would have moved a context to host memory, discarded it, or neither, where the other did
    placed: int = 0  # it would have sent a turn to another engine
    unjudged: int = 0  # decisions of the one in force while the shadow decided once in an interval only


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One of the last few: what was decided about a program, and what the shadow would have."""

    at_ns: int
    kind: str
    program_id: str
    live: str
    shadow: str


@dataclass(slots=True, kw_only=True)
class Differences:
    """What was found since the two began to be compared."""

    counts: DifferenceCounts = field(default_factory=DifferenceCounts)
    latest: deque[Difference] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _lead_ns: int = 0

    @property
    def lead_s(self) -> float:
        """Mean time by which the shadow was earlier, where it was."""
        counted = self.counts.earlier
        return self._lead_ns / counted / NANOSECONDS_PER_SECOND if counted else 0.0

    def same(self) -> None:
        """Both decided alike."""
        self.counts.same += 1

    def found(self, kind: str, at_ns: int, program_id: str, *, live: str, shadow: str) -> None:
        """They decided otherwise; ``kind`` is a field of the counts."""
        setattr(self.counts, kind, getattr(self.counts, kind) + 1)
        self.latest.append(
            Difference(at_ns=at_ns, kind=kind, program_id=program_id, live=live, shadow=shadow),
        )

    def was_earlier(self, at_ns: int, program_id: str, lead_ns: int) -> None:
        """The controller in force let in whom the shadow had let in so long before."""
        self._lead_ns += lead_ns
        live = f"let in after {lead_ns / NANOSECONDS_PER_SECOND:.1f}s more"
        self.found("earlier", at_ns, program_id, live=live, shadow="let it in before")
