"""Which context lies in which slot of llama.cpp's server, and which slot a turn gets.

A slot holds one context, and no other slot may use it: slots are the server's cache, and its unit. Left alone the
server gives a turn the slot whose context is most similar, or the one unused for longest, whoever will need that.
What lies in a slot stays until another turn overwrites it from the first token on that differs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from controlplane.core.model.events import Pin
from controlplane.core.policies.memory.victims import PIN_BUDGET_RATIO
from controlplane.gate.tickets import Ticket

NOTHING_HERE = "no slot has a context of it: no turn of it ended here, or others needed the room"
RUNS = "a turn of it runs and holds its context"
MOVES = "its context is being moved"
_SAME_CONTEXT = 0.5  # of a prompt: who begins with less of it is another conversation of the program


@dataclass(slots=True, kw_only=True)
class Slot:
    """One slot.

    ``context`` is the last turn whose prompt it holds, ``size`` that prompt's weight, ``agent`` the kind of agent
    that it is of. ``given_up``: anybody may have it, and it is its program's until it is overwritten. ``copied``:
    a file has it, too. ``moving``: a call about it is under way. ``foreign``: the server works there for somebody
    whom we did not send. ``task`` is the server's own number of its last turn; ``unseen``: one of ours ended since
    that was read.
    """

    slot_id: int
    program_id: str = ""  # empty: what lies there is nobody's, as far as we know
    context: str = ""
    size: int = 0
    agent: str = ""
    turn_id: str = ""  # of the turn that has it
    given_up: bool = False
    copied: bool = False
    moving: bool = False
    foreign: bool = False
    used_ns: int = 0
    changed_ns: int = 0  # what was asked of the server before then tells nothing of it
    retained_until_ns: int = 0
    task: int | None = None
    unseen: bool = False

    @property
    def is_idle(self) -> bool:
        return not (self.turn_id or self.moving or self.foreign)

    @property
    def is_spare(self) -> bool:
        """Whether nothing is lost with what lies there."""
        return not self.program_id or self.given_up or self.copied

    def is_retained(self, now_ns: int) -> bool:
        return self.retained_until_ns > now_ns

    def give_up(self) -> str:
        """Free for anybody from now on: whose context counts as lost by that, empty for nobody's."""
        lost = "" if self.is_spare else self.program_id
        self.given_up, self.copied = True, False
        self.size = self.retained_until_ns = 0
        return lost

    def empty(self) -> str:
        """Nothing that we know lies there: whose context is lost, empty for nobody's."""
        lost = self.give_up()
        self.program_id = self.context = ""
        return lost

    def hold(self, program_id: str, context: str, size: int) -> str:
        """A context of that program lies there: whose is lost by that, empty for nobody's."""
        lost = self.give_up()
        self.program_id, self.context, self.size, self.given_up = program_id, context, size, False
        return lost

    def take(self, ticket: Ticket, now_ns: int) -> str:
        """The turn's from now on: whose context is lost by that, empty for nobody's, or its own."""
        lost = self.hold(ticket.program_id, ticket.turn_id, _weight(ticket))
        self.turn_id, self.agent = ticket.turn_id, ticket.prompt.agent
        self.used_ns = self.changed_ns = now_ns
        return lost


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSeen:
    """What the server says of a slot: ``task`` of its last turn (None: it had none), and the tokens it holds."""

    slot_id: int
    busy: bool
    task: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The slot for a turn; whose context is lost by that, and whether that one was retained.

    ``continues``: the turn's own context lies there.
    """

    slot: Slot
    continues: bool = False
    lost: str = ""
    reclaimed: bool = False


@dataclass(slots=True, kw_only=True)
class Unplaced:
    """A turn that cannot be told its slot: it takes any, which is found out afterwards. ``ended_ns`` 0: it runs."""

    ticket: Ticket
    ended_ns: int = 0


@dataclass(slots=True)
class SlotTable:
    """The slots of one server.

    ``unwanted`` are programs for whose contexts nobody waits: they go first. ``clears``: the server empties idle
    slots by itself, so that none has anything to keep.
    """

    slots: list[Slot]
    budget_ratio: float = PIN_BUDGET_RATIO
    unwanted: set[str] = field(default_factory=set)
    unplaced: Unplaced | None = None
    clears: bool = False

    @classmethod
    def of(cls, count: int) -> "SlotTable":
        return cls([Slot(slot_id=number) for number in range(count)])

    # -- turns ---------------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket, now_ns: int) -> Begun | None:
        """Give the turn a slot; None if it has to wait for one.

        The slot with the context that it continues, else the one that is missed least: of what nobody needs, the
        context of an agent of the same kind, which begins alike. A retained context goes only where no other slot
        is idle, the one whose time ends first.
        """
        own = self._continued(ticket)
        if self.unplaced is not None or (own is not None and own.moving):
            return None
        idle = [slot for slot in self.slots if slot.is_idle]
        if own is not None and own.is_idle:
            slot = own
        elif idle:
            slot = min(idle, key=lambda each: (*self._worth(each, now_ns, ticket.prompt.agent), each.used_ns))
        else:
            return None
        was_retained = slot.is_retained(now_ns)
        lost = slot.take(ticket, now_ns)
        if slot is own:
            return Begun(slot=slot, continues=True)
        return Begun(slot=slot, lost=lost, reclaimed=was_retained)

    def begin_unplaced(self, ticket: Ticket) -> bool:
        """Let a turn go that the server itself finds a slot for; False if it has to wait.

        One at a time, until ``observe`` has found it: no turn may be sent to a slot that is busy.
        """
        if self.unplaced is not None or not any(slot.is_idle for slot in self.slots):
            return False
        self.unplaced = Unplaced(ticket=ticket)
        return True

    def end(self, turn_id: str, now_ns: int) -> bool:
        """The turn is over, and its context stays; False if it has no slot."""
        for slot in self.slots:
            if slot.turn_id == turn_id:
                slot.turn_id, slot.unseen = "", True
                slot.used_ns = slot.changed_ns = now_ns
                return True
        if self.unplaced is not None and self.unplaced.ticket.turn_id == turn_id:
            self.unplaced.ended_ns = now_ns
        return False

    def spare(self, now_ns: int) -> Slot | None:
        """Of the idle slots that retain nothing the one that is missed least."""
        idle = (slot for slot in self.slots if slot.is_idle and not slot.is_retained(now_ns))
        return min(idle, key=lambda slot: (*self._worth(slot, now_ns), slot.used_ns), default=None)

    def _worth(self, slot: Slot, now_ns: int, agent: str = "") -> tuple[int, int, bool]:
        retained_until_ns = slot.retained_until_ns if slot.is_retained(now_ns) else 0
        needed = 0 if slot.is_spare else 1 if slot.program_id in self.unwanted else 2
        return retained_until_ns, needed, slot.agent != agent

    def _continued(self, ticket: Ticket) -> Slot | None:
        """Where the context lies that the turn goes on with, also one that was given up."""
        own = [slot for slot in self.slots if slot.program_id and slot.program_id == ticket.program_id]
        own.sort(key=lambda slot: slot.used_ns, reverse=True)
        return next((slot for slot in own if goes_on(ticket, slot.context)), None)

    # -- contexts ------------------------------------------------------------------------------------------

    def of_program(self, program_id: str) -> Iterator[Slot]:
        """The slots with its contexts."""
        return (each for each in self.slots if program_id and each.program_id == program_id and not each.given_up)

    def main(self, program_id: str) -> Slot | None:
        """Of its contexts the largest: its conversation, and no request for a title."""
        return max(self.of_program(program_id), key=lambda slot: slot.size, default=None)

    def problem_with(self, slot: Slot) -> str:
        """Why a context cannot be moved or freed now; empty if it can."""
        return RUNS if slot.turn_id else MOVES if slot.moving else ""

    def retain(self, program_id: str, ttl_ns: int, now_ns: int) -> str:
        """Keep its context for so long; the reason if that cannot be done."""
        slot = self.main(program_id)
        if slot is None:
            return NOTHING_HERE
        if problem := self.problem_with(slot):
            return problem
        others = sum(1 for each in self.slots if each is not slot and each.is_retained(now_ns))
        if others + 1 > self.budget_ratio * len(self.slots):
            return f"the pin budget ({self.budget_ratio:g} of {len(self.slots)} slots) is spent"
        slot.retained_until_ns = now_ns + ttl_ns
        return ""

    def release(self, program_id: str) -> None:
        """What it has may go."""
        for slot in self.of_program(program_id):
            slot.retained_until_ns = 0

    def pins(self, now_ns: int) -> Iterator[Pin]:
        """For a ``PublisherState``."""
        for slot in self.slots:
            if slot.is_retained(now_ns):
                yield Pin(program_id=slot.program_id, ttl_ns=slot.retained_until_ns - now_ns)

    # -- what the server says --------------------------------------------------------------------------------

    def observe(self, seen: Iterable[SlotSeen], asked_ns: int) -> list[str]:
        """Compare with what the server says, asked then: the programs whose contexts are lost.

        A turn may be there that could not be told its slot. Others may ask the server past the gate, and it may
        have restarted.
        """
        lost: list[str] = []
        by_id = {each.slot_id: each for each in seen}
        for slot in self.slots:
            now = by_id.get(slot.slot_id)
            if now is None or slot.turn_id or slot.moving or slot.changed_ns >= asked_ns:
                continue
            other = now.busy or not (now.task == slot.task or slot.unseen)
            if other and self.unplaced is not None:
                lost.append(self._found(self.unplaced, slot, now, asked_ns))
            elif other:
                lost.append(slot.empty())
            elif slot.program_id and not now.tokens:
                self.clears = self.clears or (now.task is not None and not slot.given_up)
                lost.append(slot.empty())
            slot.foreign = now.busy and not slot.turn_id
            slot.task, slot.unseen = now.task, now.busy
        if self.unplaced is not None and 0 < self.unplaced.ended_ns < asked_ns:
            self.unplaced = None  # it was refused, and had none
        return [program_id for program_id in lost if program_id]

    def _found(self, turn: Unplaced, slot: Slot, now: SlotSeen, now_ns: int) -> str:
        """The turn runs in that slot, or did: whose context is lost by that."""
        self.unplaced = None
        is_own = slot.program_id == turn.ticket.program_id
        lost = slot.take(turn.ticket, now_ns)
        if turn.ended_ns:
            slot.turn_id = ""
        return "" if is_own else lost


def goes_on(ticket: Ticket, context: str) -> bool:
    """Whether the turn's prompt begins with that context's, one of its own program's."""
    prompt = ticket.prompt
    if not prompt.is_measured:
        return True
    return prompt.continues == context and prompt.shared_ratio >= _SAME_CONTEXT


def _weight(ticket: Ticket) -> int:
    """Of its prompt, to compare with others of its program."""
    return ticket.prompt.prompt_bytes + 4 * ticket.prompt.prompt_tokens + sum(ticket.prompt.media)
