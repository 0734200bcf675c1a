"""The programs that a gate remembers: their grants, running and held turns, children and proofs of parenthood.

Grants are leases that use renews, and the table is bounded: a program that never ends is forgotten eventually. A
forgotten program only has to ask once more.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from controlplane.core.model.commands import Refuse
from controlplane.core.model.events import Grant
from controlplane.core.model.types import seconds
from controlplane.gate.identity import is_one_turn

_MOST_PROGRAMS = 16_384  # of those that had a turn last: who starts a child has just had one
FOR_GOOD = 1 << 62
_ASKED_AGAIN_NS = seconds(10)  # after a refusal for a time: budgets change while that passes
_MOST_LEFT = 64  # ends of leases that no longer count, before they are cleared away
_MOST_TURNS = 8  # of a program: a child is started by a reply that its agent read last, or by one beside it


class Leases:
    """Counts the programs that hold a slot: without its daemon a gate asks for that at each request.

    It has programs of the table only, and looks at those whose lease may have ended since it was asked last.
    """

    def __init__(self) -> None:
        self._holders: dict[str, RootProgram] = {}
        self._ends: list[tuple[int, str]] = []  # a heap; a program's latest entry counts

    def note(self, program: "RootProgram") -> None:
        """A program's grant or its running turns have changed."""
        if not (program.running or program.granted_until_ns):
            self.forget(program)
            return
        self._holders[program.program_id] = program
        if program.granted_until_ns and not program.lease_ends_ns:
            self._expect(program)
        if len(self._ends) > _MOST_LEFT + 2 * len(self._holders):
            self._ends = [each for each in self._ends if self._is_latest(*each)]
            heapq.heapify(self._ends)

    def forget(self, program: "RootProgram") -> None:
        """The program holds none, or is known no more."""
        self._holders.pop(program.program_id, None)
        program.lease_ends_ns = 0

    def count(self, now_ns: int) -> int:
        """How many have a turn running, or a grant that lasts."""
        while self._ends and self._ends[0][0] <= now_ns:
            at_ns, name = heapq.heappop(self._ends)
            if not self._is_latest(at_ns, name):
                continue
            program = self._holders[name]
            program.lease_ends_ns = 0
            if program.granted_until_ns > now_ns:
                self._expect(program)  # it was renewed meanwhile
            elif not program.running:
                del self._holders[name]
        return len(self._holders)

    def _expect(self, program: "RootProgram") -> None:
        program.lease_ends_ns = program.granted_until_ns
        heapq.heappush(self._ends, (program.lease_ends_ns, program.program_id))

    def _is_latest(self, at_ns: int, name: str) -> bool:
        program = self._holders.get(name)
        return program is not None and program.lease_ends_ns == at_ns


@dataclass(slots=True)
class RootProgram:
    """A root program at this gate; its children's turns count as its own."""

    program_id: str
    leases: Leases = field(default_factory=Leases, repr=False, compare=False)
    lease_ends_ns: int = 0  # as ``leases`` has it; 0: it does not wait for that
    grant_ttl_ns: int = 0
    granted_until_ns: int = 0  # 0: no grant
    grant_id: int = 0  # the number of the command that gave it; 0: nobody counted it
    refused_until_ns: int = 0  # its turns are refused until then; 0: they are not
    refused_at_ns: int = 0
    refusal: str = ""  # and why
    refusal_code: str = ""
    local_grant: bool = False  # given by the gate itself while the daemon was lost
    known: bool = False  # some turn of it has run
    running: int = 0  # turns between entry and end
    held: dict[str, None] = field(default_factory=dict)  # turn ids, oldest first

    def granted(self, now_ns: int) -> bool:
        """True while its turns pass. A running turn keeps the lease alive."""
        return self.granted_until_ns > 0 and (self.running > 0 or now_ns < self.granted_until_ns)

    def grant(self, ttl_ns: int, now_ns: int, *, local: bool, command_id: int = 0) -> None:
        self.grant_id = command_id
        self.grant_ttl_ns = ttl_ns
        self.granted_until_ns = now_ns + ttl_ns
        self.local_grant = local
        self.leases.note(self)

    def turn(self, by: int, now_ns: int) -> None:
        """So many more turns of it run; who has a grant has it for as long again."""
        self.running += by
        if self.granted_until_ns > 0:
            self.granted_until_ns = max(self.granted_until_ns, now_ns + self.grant_ttl_ns)
        self.leases.note(self)

    def refuse(self, command: Refuse, now_ns: int) -> None:
        """Its turns are refused for so long; 0: for good. Running ones go on."""
        self.refused_until_ns = now_ns + command.ttl_ns if command.ttl_ns else FOR_GOOD
        self.refusal, self.refusal_code = command.reason, command.code
        self.refused_at_ns = now_ns
        self.revoke()

    def refused(self, now_ns: int, *, governed: bool) -> bool:
        """True while its turns are refused.

        A daemon that governs is asked again now and then: an operator may have raised the budget meanwhile, or the
        queue may have become short.
        """
        if not governed or self.refused_until_ns == FOR_GOOD:
            return now_ns < self.refused_until_ns
        return now_ns < min(self.refused_until_ns, self.refused_at_ns + _ASKED_AGAIN_NS)

    def revoke(self) -> None:
        self.granted_until_ns = 0
        self.local_grant = False
        self.leases.note(self)

    def succeed(self, child: "RootProgram", now_ns: int) -> None:
        """Take over the slot and the held turns of a former root, which is now this program's child."""
        self.known = self.known or child.known
        self.held.update(child.held)
        child.held.clear()
        if child.granted(now_ns) and not self.granted(now_ns):
            self.grant(child.grant_ttl_ns, now_ns, local=child.local_grant, command_id=child.grant_id)
        child.revoke()

    @property
    def idle(self) -> bool:
        return self.running == 0 and not self.held


class ProgramTable:
    """Root programs by id, least recently used first, and the parents of children."""

    def __init__(self, max_programs: int) -> None:
        self._max_programs = max_programs
        self._roots: OrderedDict[str, RootProgram] = OrderedDict()
        self._parents: OrderedDict[str, str] = OrderedDict()
        self.leases = Leases()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._roots)

    def __iter__(self) -> Iterator[RootProgram]:
        return iter(self._roots.values())

    def grants(self, now_ns: int) -> tuple[Grant, ...]:
        """The programs that a daemon granted a slot; one that came in unasked has no claim to a slot."""
        return tuple(
            Grant(program_id=program.program_id, command_id=program.grant_id)
            for program in self._roots.values()
            if program.granted(now_ns) and not program.local_grant
        )

    def link(self, program_id: str, parent_id: str, now_ns: int) -> bool:
        """Take note of a parent; True if it is new. The first known parent stays, as in the ledger, while it runs.

        A parent whose root is the program itself is ignored: families have no cycles. Turns of the program that are
        already running end on its own record.
        """
        if not self.may_link(program_id, parent_id, now_ns):
            return False
        root_id = self.root_id(parent_id)
        self._parents[program_id] = root_id
        if (own := self._roots.get(program_id)) is not None:
            self.use(root_id).succeed(own, now_ns)
        if len(self._parents) > self._max_programs:
            self._parents.popitem(last=False)
        return True

    def may_link(self, program_id: str, parent_id: str, now_ns: int) -> bool:
        """True if that parent would be new: where a root neither runs nor may, its children's names are free."""
        root_id, known_id = self.root_id(parent_id), self.root_id(program_id)
        if not parent_id or root_id in (program_id, known_id):
            return False
        known = self._roots.get(known_id) if known_id != program_id else None
        return known is None or not (known.running or known.granted(now_ns))

    def root_id(self, program_id: str) -> str:
        """The root that ``program_id`` rides on, which is itself if no parent is known."""
        root_id = program_id
        while (parent_id := self._parents.get(root_id)) is not None:
            root_id = parent_id
        if root_id != program_id:
            self._parents[program_id] = root_id  # so that no chain is climbed twice
        return root_id

    def expects(self, root_id: str) -> bool:
        """Whether turns of that root may come: of one that lasts for one request only while it is here."""
        return root_id in self._roots or not is_one_turn(root_id)

    def get(self, root_id: str) -> RootProgram | None:
        return self._roots.get(root_id)

    def use(self, root_id: str) -> RootProgram:
        """The record of a root, made if need be, as the most recently used one."""
        program = self._roots.get(root_id)
        if program is not None:
            self._roots.move_to_end(root_id)
            return program
        if len(self._roots) >= self._max_programs:
            self._forget_one()
        program = self._roots[root_id] = RootProgram(root_id, self.leases)
        return program

    def drop(self, program_id: str) -> None:
        """Forget a program that ended, unless one of its turns still runs or waits."""
        self._parents.pop(program_id, None)
        program = self._roots.get(program_id)
        if program is not None and program.idle:
            self._forget(program)

    def _forget_one(self) -> None:
        """Drop the longest idle program. If none is idle the table grows, since live turns are bounded."""
        for program in self._roots.values():
            if program.idle:
                self._forget(program)
                self.forgotten += 1
                return

    def _forget(self, program: RootProgram) -> None:
        del self._roots[program.program_id]
        self.leases.forget(program)


class Proofs:
    """Proofs of parenthood: the id of one of the parent's turns, which only that turn's client knows.

    It keeps the latest turns of each program, and forgets the longest silent program first.
    """

    def __init__(self, most_programs: int = _MOST_PROGRAMS) -> None:
        self._most_programs = most_programs
        self._turns: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def remember(self, program_id: str, turn_id: str) -> None:
        """Remember a turn's id that the program's client is about to get."""
        turns = self._turns.pop(program_id, ())
        self._turns[program_id] = (*turns[1 - _MOST_TURNS :], turn_id)
        if len(self._turns) > self._most_programs:
            self._turns.popitem(last=False)

    def prove(self, program_id: str, turn_id: str) -> bool:
        """True if ``turn_id`` is one of the program's latest turns."""
        return turn_id in self._turns.get(program_id, ())

    def forget(self, program_id: str) -> None:
        """Forget a program that ended and starts no more children."""
        self._turns.pop(program_id, None)
