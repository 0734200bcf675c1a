"""The turns that a gate holds, by how long they have waited."""

import asyncio
import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.gate.tickets import Entered, Refused, Ticket

_MOST_LEFT = 64  # that are kept in the heap before it is cleared of them


@dataclass(slots=True, eq=False)
class Held:
    """A turn that waits, and the future that its waiter awaits."""

    ticket: Ticket
    root_id: str
    since_ns: int
    deadline_ns: int  # when it is looked at again, and refused if it has waited for too long
    outcome: asyncio.Future[Entered | Refused]

    @property
    def parent_id(self) -> str:
        """The turn's root, if the turn is a child's."""
        return self.root_id if self.root_id != self.ticket.program_id else ""

    def settle(self, outcome: Entered | Refused) -> None:
        """Wake the waiter, unless it was cancelled meanwhile."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class Holds:
    """Held turns by id; the first has waited longest."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._by_age: list[tuple[int, str]] = []  # a heap, with some that have left
        self._deadlines: list[tuple[int, str]] = []  # likewise, with some that were put off
        self._asked_ns: OrderedDict[str, int] = OrderedDict()  # longest not asked for first
        self._places: dict[str, int] = {}  # of the programs that were held at that instant, by their root
        self._places_ns = 0
        self.size_bytes = 0
        self._turns_of: Counter[str] = Counter()  # by account; only of those that have any
        self._bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._held

    def __iter__(self) -> Iterator[Held]:
        """Longest held first."""
        return iter(sorted(self._held.values(), key=lambda each: each.since_ns))

    def __getitem__(self, turn_id: str) -> Held:
        return self._held[turn_id]

    @property
    def first(self) -> Held | None:
        while self._by_age and not self._is_held(*self._by_age[0]):
            heapq.heappop(self._by_age)
        return self._held[self._by_age[0][1]] if self._by_age else None

    @property
    def next_due(self) -> Held | None:
        """The turn whose deadline comes first."""
        while self._deadlines:
            deadline_ns, turn_id = self._deadlines[0]
            held = self._held.get(turn_id)
            if held is not None and held.deadline_ns == deadline_ns:
                return held
            heapq.heappop(self._deadlines)
        return None

    def put_off(self, held: Held, deadline_ns: int) -> None:
        """Give the turn a later deadline."""
        held.deadline_ns = deadline_ns
        heapq.heappush(self._deadlines, (deadline_ns, held.ticket.turn_id))

    @property
    def least_asked(self) -> tuple[Held, int] | None:
        """The turn that was asked for least recently, and when that was."""
        for turn_id, asked_ns in self._asked_ns.items():
            return self._held[turn_id], asked_ns
        return None

    def add(self, held: Held, now_ns: int) -> None:
        self._held[held.ticket.turn_id] = held
        heapq.heappush(self._by_age, (held.since_ns, held.ticket.turn_id))
        heapq.heappush(self._deadlines, (held.deadline_ns, held.ticket.turn_id))
        self._asked_ns[held.ticket.turn_id] = now_ns
        self.size_bytes += held.ticket.held_bytes
        self._turns_of[held.ticket.account] += 1
        self._bytes_of[held.ticket.account] += held.ticket.held_bytes

    def remove(self, held: Held) -> None:
        del self._held[held.ticket.turn_id]
        del self._asked_ns[held.ticket.turn_id]
        account, size = held.ticket.account, held.ticket.held_bytes
        self.size_bytes -= size
        self._turns_of[account] -= 1
        self._bytes_of[account] -= size
        if not self._turns_of[account]:
            del self._turns_of[account], self._bytes_of[account]
        if len(self._by_age) > _MOST_LEFT + 2 * len(self._held):
            self._by_age = [each for each in self._by_age if self._is_held(*each)]
            heapq.heapify(self._by_age)
            self._deadlines = [(each.deadline_ns, name) for name, each in self._held.items()]
            heapq.heapify(self._deadlines)

    def share_of(self, ticket: Ticket) -> tuple[int, int]:
        """Turns and bytes that would be held if each account held as much as that turn's would with it."""
        account = ticket.account
        accounts = len(self._turns_of) + (account not in self._turns_of)
        turns, size = self._turns_of.get(account, 0) + 1, self._bytes_of.get(account, 0) + ticket.held_bytes
        return turns * accounts, size * accounts

    def place_of(self, held: Held, now_ns: int, *, age_ns: int) -> int:
        """Its program's place among those held, the longest held first, from 1.

        Where many are held it may be old: at most ``age_ns`` for each of them.
        """
        if not self._places or now_ns - self._places_ns >= age_ns * len(self._held):
            roots = dict.fromkeys(each.root_id for each in self)
            self._places = {root_id: place for place, root_id in enumerate(roots, 1)}
            self._places_ns = now_ns
        return self._places.get(held.root_id, len(self._places) + 1)  # who came since is behind them

    def asked(self, held: Held, now_ns: int) -> None:
        self._asked_ns[held.ticket.turn_id] = now_ns
        self._asked_ns.move_to_end(held.ticket.turn_id)

    def _is_held(self, since_ns: int, turn_id: str) -> bool:
        held = self._held.get(turn_id)
        return held is not None and held.since_ns == since_ns
