"""Which program has which of SGLang's sessions, and when each is closed.

A session is a name that turns carry (``--enable-session-radix-cache``). What they leave in SGLang's cache is held
by it until it is closed: SGLang evicts what no session holds first, then what sessions hold, so that no turn waits
for room. It bounds neither how many there are nor how long they stay open, and does not tell which are. So they are
numbered, the least free number first, and few: whoever begins, not knowing what was open before, closes all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from controlplane.core.model.events import Pin
from controlplane.core.model.types import seconds
from controlplane.gate.tickets import Ticket

MOST = 256
IDLE_NS = seconds(600)  # as long as the longest pin that presets ask for: after that the daemon's word was lost
NOTHING_HERE = "no session has a context of it: no turn of it ended here, or it was closed"
RUNS = "a turn of it runs and holds its context"


@dataclass(slots=True, kw_only=True)
class Session:
    """One program's. ``until_ns``: when a ``Retain`` ends; 0: none holds. ``unwanted``: its running turns are the
    last that it is open for."""

    number: int
    parent_id: str
    used_ns: int
    turns: set[str] = field(default_factory=set)
    until_ns: int = 0
    unwanted: bool = False

    def is_due(self, now_ns: int) -> bool:
        """Whether it is to be closed."""
        return not self.turns and (self.unwanted or now_ns >= (self.until_ns or self.used_ns + IDLE_NS))


@dataclass(slots=True)
class Sessions:
    """The sessions of one server. At first each may be open there, and is ``closing``."""

    most: int = MOST
    by_program: dict[str, Session] = field(default_factory=dict)
    closing: set[int] = field(init=False)
    _free: list[int] = field(default_factory=list)  # a heap

    def __post_init__(self) -> None:
        self.closing = set(range(self.most))

    # -- turns ---------------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket, now_ns: int) -> int | None:
        """The number of the session that the turn is to carry; None: it goes without.

        Where all are taken the one whose last turn is longest ago is closed, for a turn to come.
        """
        session = self.by_program.get(ticket.program_id)
        if session is None:
            if not self._free:
                self._close_oldest()
                return None
            session = Session(number=heappop(self._free), parent_id=ticket.parent_id, used_ns=now_ns)
            self.by_program[ticket.program_id] = session
        session.turns.add(ticket.turn_id)
        session.used_ns, session.until_ns, session.unwanted = now_ns, 0, False
        return session.number

    def _close_oldest(self) -> None:
        idle = (name for name, session in self.by_program.items() if not session.turns)
        oldest = min(idle, key=lambda name: self.by_program[name].used_ns, default=None)
        if oldest is not None and not self.closing:
            self._close(oldest)

    def end(self, ticket: Ticket, now_ns: int) -> None:
        """The turn is over; what it left is held."""
        session = self.by_program.get(ticket.program_id)
        if session is not None and ticket.turn_id in session.turns:
            session.turns.remove(ticket.turn_id)
            session.used_ns = now_ns

    # -- the daemon's word -----------------------------------------------------------------------------------

    def retain(self, program_id: str, ttl_ns: int, now_ns: int) -> str:
        """Close it after so long, unless a turn comes before; the reason if that cannot be done."""
        session = self.by_program.get(program_id)
        if session is None or session.turns:
            return RUNS if session is not None else NOTHING_HERE
        session.until_ns, session.unwanted = now_ns + ttl_ns, False
        return ""

    def let_go(self, program_id: str) -> str:
        """Close it; the reason if there is nothing to close, or a turn runs."""
        session = self.by_program.get(program_id)
        if session is None or session.turns:
            return RUNS if session is not None else NOTHING_HERE
        self._close(program_id)
        return ""

    def park(self, program_id: str) -> None:
        """Its slot is taken back, and with it its children's: close theirs, once their running turns are over."""
        for name, session in self.by_program.items():
            if program_id in (name, session.parent_id):
                session.unwanted = True

    def want(self, program_id: str) -> None:
        """It has a slot again."""
        for name, session in self.by_program.items():
            if program_id in (name, session.parent_id):
                session.unwanted = False

    # -- closing ---------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> Iterator[int]:
        """Those that the server is to be told to close, one by one; ``closed`` follows where it was."""
        for name in [name for name, session in self.by_program.items() if session.is_due(now_ns)]:
            self._close(name)
        yield from sorted(self.closing)

    def _close(self, program_id: str) -> None:
        self.closing.add(self.by_program.pop(program_id).number)

    def closed(self, number: int) -> None:
        """The server did so: another program may have the number."""
        self.closing.remove(number)
        heappush(self._free, number)

    def pins(self, now_ns: int) -> Iterator[Pin]:
        """For a ``PublisherState``."""
        for name, session in self.by_program.items():
            if session.until_ns > now_ns:
                yield Pin(program_id=name, ttl_ns=session.until_ns - now_ns)
