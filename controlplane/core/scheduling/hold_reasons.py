"""Why programs are held: what binds at each tick, and for how long each reason has.

One reason binds most of a queue at a time, so its time is counted once for all: a program's own hold is the
difference of two sums. Few have a reason of their own (an operator's hold, a budget, a context that does not fit),
and theirs are counted by program.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from controlplane.core.ledger import Ledger
from controlplane.core.model import events as ev

_AWAY_INTERVALS = 3  # of the controller, without a tick: no decision was made in that time
_MOST_FREEZES = 64
_MOST_POINTS = 4096  # of the sums; beyond, every other one of the older half goes


class Reason(Enum):
    """What keeps a program at the gate. The value is a metric's label."""

    SLOTS = "slots"
    ROOM_NOW = "room_now"
    ROOM_AHEAD = "room_ahead"
    RESERVED = "reserved"
    TENANT_TURN = "tenant_turn"
    GROUP = "group"
    SCAN_LIMIT = "scan_limit"
    HOST_MEMORY = "host_memory"
    BUDGET = "budget"
    OPERATOR = "operator"
    DRAIN = "drain"
    AWAY = "away"


_TEXTS = {
    Reason.SLOTS: "all slots are taken",
    Reason.ROOM_NOW: "no room for its context now",
    Reason.ROOM_AHEAD: "no room for what it will grow to",
    Reason.RESERVED: "room is reserved",
    Reason.TENANT_TURN: "it is another tenant's turn",
    Reason.GROUP: "its group's prompt is computed first",
    Reason.SCAN_LIMIT: "many before it do not fit",
    Reason.HOST_MEMORY: "no host memory for its sandbox",
    Reason.BUDGET: "its tenant's budget is spent",
    Reason.OPERATOR: "an operator holds it",
    Reason.DRAIN: "the node drains",
    Reason.AWAY: "the daemon or its bus was away",
}


@dataclass(frozen=True, slots=True)
class Binding:
    """What binds; ``program_id``: for whom room is reserved."""

    reason: Reason
    program_id: str = ""

    @property
    def text(self) -> str:
        return f"{_TEXTS[self.reason]}{f' for {self.program_id}' if self.program_id else ''}"


def own_bindings(
    ledger: Ledger, passed_over: Mapping[str, Binding], behind_siblings: Iterable[str]
) -> dict[str, Binding]:
    """Of those in the queue whom something else holds back than what binds the queue."""
    programs, spent = ledger.programs, ledger.accounts.spent_now
    own = dict(passed_over) | dict.fromkeys(behind_siblings, Binding(Reason.GROUP))
    if spent:
        queued = (programs.by_name[name] for name in programs.queue)
        own |= {each.program_id: Binding(Reason.BUDGET) for each in queued if each.payer in spent}
    own |= dict.fromkeys(programs.ordered_held, Binding(Reason.OPERATOR))
    return {name: each for name, each in own.items() if name in programs.queue}


Sums = Counter[Reason]
"""Nanoseconds by reason."""


@dataclass(frozen=True, slots=True)
class EndedHold:
    """For how long a program was held by which reason, the longest first; and what let it in, if an event did."""

    reasons: Sequence[tuple[Binding, int]]
    cause: str = ""


# Events by which another program may find room, as a person says it.
_CAUSES: dict[type[ev.Event], str] = {
    ev.TurnEnded: "{}'s turn ended",
    ev.ProgramEnded: "{} ended",
    ev.ReplyRead: "{}'s reply was read",
    ev.ToolStarted: "{} runs a tool",
    ev.TurnAbandoned: "{} left the queue",
    ev.OperatorOrders: "an operator ordered",
}


@dataclass(slots=True)
class _Own:
    binding: Binding | None = None
    since_ns: int = 0
    sums: Sums = field(default_factory=Counter)
    others: Sums = field(default_factory=Counter)


class HoldReasons:
    """For how long each reason has bound the queue."""

    def __init__(self) -> None:
        self.binding = Binding(Reason.AWAY)
        self.ended: dict[str, EndedHold] = {}  # of those that the last tick let in
        self.left: dict[str, EndedHold] = {}  # by turn_id: whose clients left since the tick before last
        self._left_before = 0  # of these: so many were there at the last tick
        self._cause = ""  # the latest event by which somebody may find room
        self._at_ns: list[int] = []  # when the binding changed, and last the latest tick
        self._sums: list[tuple[int, ...]] = []  # until then, in the order of ``Reason``
        self._own: dict[str, _Own] = {}
        self._reserved_for: dict[Reason, str] = {}  # the latest
        self._away: deque[tuple[int, int]] = deque(maxlen=_MOST_FREEZES)  # when each ended, and how long it was

    def begin_tick(self) -> None:
        """Forget what the last tick ended, once whoever records decisions has seen it."""
        self.ended.clear()
        for turn_id in list(islice(self.left, self._left_before)):
            del self.left[turn_id]
        self._left_before = len(self.left)

    def leave(self, event: ev.TurnAbandoned, ledger: Ledger, now_ns: int) -> None:
        """A turn's client is about to leave while it is held."""
        held = ledger.gates.held.get(event.turn_id)
        if held is not None:
            root = ledger.programs.by_name[ledger.programs.by_name[held.program_id].root_id]
            reasons = self.of(root.program_id, root.queued_at_ns or now_ns, now_ns)
            self.left[event.turn_id] = EndedHold(reasons)

    def tick(self, now_ns: int, binding: Binding, own: Mapping[str, Binding], interval_ns: int) -> None:
        """From now on ``binding`` holds back whoever waits, but those that have their ``own``."""
        self._count(now_ns, interval_ns)
        self.binding, self._cause = binding, ""
        for each in (binding, *own.values()):
            if each.program_id:
                self._reserved_for[each.reason] = each.program_id
        for name, mine in self._own.items():
            if mine.binding is not None and own.get(name) != mine.binding:
                self._close(mine, now_ns)
        for name, wanted in own.items():
            mine = self._own.setdefault(name, _Own())
            if mine.binding is None:
                mine.binding, mine.since_ns = wanted, now_ns

    def away(self, now_ns: int, for_ns: int) -> None:
        """The process did not run for so long until now, and its clock stood."""
        self._away.append((now_ns, for_ns))

    def of(self, program_id: str, since_ns: int, now_ns: int) -> list[tuple[Binding, int]]:
        """The reasons of a hold since then, each with its nanoseconds, the longest first."""
        sums = self._between(since_ns, now_ns)
        sums[Reason.AWAY] += now_ns - since_ns - sum(sums.values())
        sums[Reason.AWAY] += sum(for_ns for at_ns, for_ns in self._away if at_ns >= since_ns)
        if (mine := self._own.get(program_id)) is not None:
            if (binding := mine.binding) is not None:
                self._close(mine, now_ns)
                mine.binding = binding
            sums = sums - mine.others + mine.sums
        found = [(Binding(reason, self._reserved_for.get(reason, "")), ns) for reason, ns in sums.items() if ns > 0]
        return sorted(found, key=lambda each: -each[1])

    def note(self, event: ev.Event) -> None:
        """Remember the event, if others may find room by it."""
        if (text := _CAUSES.get(type(event))) is not None:
            self._cause = text.format(getattr(event, "program_id", ""))

    def end(self, program_id: str, since_ns: int, now_ns: int) -> None:
        """The program is let in at this tick."""
        self.ended[program_id] = EndedHold(self.of(program_id, since_ns, now_ns), self._cause)
        self._own.pop(program_id, None)

    def now(self, program_id: str) -> Binding:
        """What holds that program at this moment."""
        mine = self._own.get(program_id)
        return mine.binding if mine is not None and mine.binding is not None else self.binding

    def forget(self, waiting: Mapping[str, object]) -> None:
        """Forget who waits no more, and what bound before where nobody does."""
        if not waiting and self._at_ns:
            self._at_ns, self._sums = [self._at_ns[-1]] * 2, [_NONE, _NONE]
        for name in [name for name in self._own if name not in waiting]:
            del self._own[name]

    def _close(self, mine: _Own, now_ns: int) -> None:
        if mine.binding is not None:
            mine.sums[mine.binding.reason] += now_ns - mine.since_ns
            mine.others += self._between(mine.since_ns, now_ns)
            mine.binding, mine.since_ns = None, now_ns

    def _count(self, now_ns: int, interval_ns: int) -> None:
        if not self._at_ns:
            self._at_ns, self._sums = [now_ns, now_ns], [_NONE, _NONE]
            return
        took_ns = now_ns - self._at_ns[-1]
        if took_ns <= 0:
            return
        index = _INDEX[Reason.AWAY if took_ns > _AWAY_INTERVALS * interval_ns else self.binding.reason]
        before, last = self._sums[-2:]
        if last[index] - before[index] != sum(last) - sum(before):  # another reason than since the point before
            self._at_ns.append(now_ns)
            self._sums.append(last)
        self._at_ns[-1] = now_ns
        self._sums[-1] = (*last[:index], last[index] + took_ns, *last[index + 1 :])
        if len(self._at_ns) > _MOST_POINTS:
            del self._at_ns[1 : _MOST_POINTS // 2 : 2], self._sums[1 : _MOST_POINTS // 2 : 2]

    def _between(self, since_ns: int, now_ns: int) -> Sums:
        """By reason, of what is known of that time."""
        if not self._at_ns:
            return Counter()
        sums = Counter(dict(zip(Reason, map(int.__sub__, self._sums[-1], self._until(since_ns)), strict=True)))
        sums[self.binding.reason] += now_ns - max(since_ns, self._at_ns[-1])
        return sums

    def _until(self, at_ns: int) -> tuple[int, ...]:
        """The sums at that time, between two points in proportion."""
        index = bisect_left(self._at_ns, at_ns)
        if index in (0, len(self._at_ns)):
            return self._sums[min(index, len(self._sums) - 1)]
        begin_ns, end_ns = self._at_ns[index - 1 : index + 1]
        begin, end = self._sums[index - 1 : index + 1]
        return tuple(
            b + (e - b) * (at_ns - begin_ns) // (end_ns - begin_ns) for b, e in zip(begin, end, strict=True)
        )


_INDEX = {reason: index for index, reason in enumerate(Reason)}
_NONE = (0,) * len(Reason)
