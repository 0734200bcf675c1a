"""What publishers have told: whose events are numbered how far, what is missing, how late they tell it.

Duplicates are dropped, gaps are seen and may close late. An end that comes before its beginning is believed where
something of its publisher is missing, and is a contradiction where nothing is.
"""

from dataclasses import dataclass, field
from enum import Enum

from controlplane.core.ledger.persisted import persisted
from controlplane.core.model import events as ev
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.places import place_of, serves

_MOST_GAPS = 64
_MOST_EARLY_ENDS = 4096
_DRIFT = 10_000  # a clock may gain one part in so many on another
_MOST_JUDGED = 1024  # publishers whose clocks are known; who was judged longest ago makes room


class Arrival(Enum):
    """What a sequence number tells."""

    NEW = "new"
    DUPLICATE = "duplicate"
    AFTER_GAP = "after_gap"  # new, but numbers before it are missing


@dataclass(slots=True, kw_only=True)
class SequenceTracker:
    """One publisher's numbers, which count from 1. ``missing`` holds (first, last) ranges, ascending."""

    expected: int = 1
    missing: list[tuple[int, int]] = field(default_factory=list)
    heard_at_ns: int = 0
    asked_at_ns: int = 0  # when its state was last requested
    unanswered: int = 0  # requests since it was last heard
    is_gate: bool = False  # it has held a turn, whatever its name says

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


@dataclass(slots=True, kw_only=True)
class Lateness:
    """By publisher: the least difference between its clock and ours, and when it was judged last.

    So an event is told how much later than the quickest of its publisher's. One that was cut off tells afterwards
    what happened meanwhile. Its clock and ours differ by no more than the least that was seen between them, also
    after it was taken for gone: who is cut off for long comes back, and then tells much at once.
    """

    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, publisher: str, at_ns: int, now_ns: int) -> None:
        """An event of the publisher's ``at_ns``, which is 0 where it did not say, was read at our ``now_ns``."""
        if not at_ns:
            return
        between_ns, known = now_ns - at_ns, self.seen.pop(publisher, None)
        if known is not None:
            least_ns = known[0] + (now_ns - known[1]) // _DRIFT
            self.seen[publisher] = (least_ns if least_ns < between_ns else between_ns, now_ns)
            return
        self.seen[publisher] = (between_ns, now_ns)
        if len(self.seen) > _MOST_JUDGED:
            del self.seen[next(iter(self.seen))]

    def of(self, publisher: str, at_ns: int, now_ns: int) -> int:
        """Nanoseconds; 0 while nothing is known of its publisher."""
        if not at_ns or publisher not in self.seen:
            return 0
        return max(0, now_ns - at_ns - self.seen[publisher][0])


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was not applied as it came, for metrics and the log."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    contradictions: int = 0  # RemoteEventError
    late: int = 0  # an end or start that arrived on the wrong side of its partner
    commands_applied: int = 0
    commands_rejected: int = 0
    admitted_unasked: int = 0  # turns that reached the engine without a grant
    taken_back: int = 0  # slots that nobody granted, taken back at a turn's end


@dataclass(slots=True, kw_only=True, eq=False)
class Publishers:
    """Who has told what."""

    counts: Counts = persisted(Counts)
    sequences: dict[str, SequenceTracker] = persisted(
        dict
    )  # by publisher, longest silent first: ``PublisherStates`` forgets
    serving: dict[str, None] = field(default_factory=dict)  # of these the engines and gates
    resync: dict[str, int] = persisted(dict)  # publishers whose state is needed: times asked
    early_ends: dict[str, int] = persisted(dict)  # ids of turns and tool calls whose end came first, and when
    lateness: Lateness = field(default_factory=Lateness)  # not kept: our own clock may be another in the next life

    def __post_init__(self) -> None:
        by_silence = sorted(self.sequences.items(), key=lambda known: known[1].heard_at_ns)
        self.sequences = dict(by_silence)  # an older snapshot has them in another order
        self.serving = dict.fromkeys(filter(serves, self.sequences))

    def note(self, event: ev.Event, now_ns: int) -> bool:
        """Take a numbered event's number in; False for a duplicate. A gap is counted, and asked about."""
        sequence = self.sequences.pop(event.publisher)
        self.sequences[event.publisher] = sequence  # the last of them
        sequence.heard_at_ns = now_ns
        sequence.unanswered = 0
        arrival = sequence.note(event.sequence)
        if arrival is Arrival.NEW:
            return True
        if arrival is Arrival.DUPLICATE:
            self.counts.duplicates += 1
            return False
        self.counts.gaps += 1
        self.resync[event.publisher] = 0
        return True

    def doubt(self, place: str) -> None:
        """Have whoever serves at the place asked for its state: it may hang."""
        for publisher in self.serving:
            if place_of(publisher) == place:
                self.resync.setdefault(publisher, 0)

    def silent_ns(self, now_ns: int) -> int:
        """For how long nobody was heard; 0 if nobody ever was."""
        return max(0, now_ns - self.sequences[next(reversed(self.sequences))].heard_at_ns) if self.sequences else 0

    def ended_early(self, key: str, publisher: str, now_ns: int, what: str) -> None:
        """An end without a beginning: late delivery where the publisher has gaps, else its fault."""
        sequence = self.sequences.get(publisher)
        if sequence is not None and not sequence.missing:
            raise RemoteEventError(f"{publisher}: {what} {key!r} ended and never began")
        self.counts.late += 1
        self.early_ends[key] = now_ns
        if len(self.early_ends) > _MOST_EARLY_ENDS:
            del self.early_ends[next(iter(self.early_ends))]

    def forget_early_ends(self, horizon_ns: int) -> None:
        """Drop ends that waited too long for their beginning."""
        early = self.early_ends
        for key in [key for key, seen_ns in early.items() if seen_ns <= horizon_ns]:
            del early[key]

    def forget(self, publisher: str) -> None:
        self.sequences.pop(publisher, None)
        self.serving.pop(publisher, None)
        self.resync.pop(publisher, None)
