"""The programs: their records, who holds a slot, who waits for one, who is whose child, and the sums over them.

Sums that every decision needs are kept as they change, so that an event costs the same with ten programs and with a
hundred thousand. They can always be recomputed from the records (``Charges.of``), which a snapshot's loading does
and the stateful tests compare.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from controlplane.core.estimate import Estimates
from controlplane.core.ledger.kept import kept
from controlplane.core.lifecycle import Trigger, next_status
from controlplane.core.types import Program, QueuedProgram, Status


@dataclass(slots=True, kw_only=True)
class Charges:
    """Sums over the programs."""

    demand_blocks: int = 0  # charges of active programs, without the prefix that they share
    charged: int = 0  # programs that are charged
    lent_blocks: int = 0  # of active programs that lend their room, which are not
    active_roots: int = 0
    queued_blocks: int = 0
    # By place of the engine, where there are several: the charges of the active programs that ran there last.
    several: bool = False
    placed_blocks: Counter[str] = field(default_factory=Counter)
    placed: Counter[str] = field(default_factory=Counter)
    placed_lent_blocks: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, programs: Mapping[str, Program], *, several: bool) -> "Charges":
        """Recomputed from the records; by place, too, where there are ``several`` engines."""
        charges = cls(queued_blocks=sum(p.queued_blocks for p in waiting_roots(programs.values())), several=several)
        for program in programs.values():
            if program.status is Status.ACTIVE:
                charges.count(program, 1)
        return charges

    def count(self, program: Program, by: int) -> None:
        """Add ``by`` active programs like this one."""
        self.active_roots += by * (not program.parent_id)
        self.charged += by * (not program.lends)
        if self.several:
            self.placed[program.replica] += by * (not program.lends)
        self.charge(program, by * (program.kv_blocks - program.shared_blocks))

    def charge(self, program: Program, blocks: int) -> None:
        """Add to what an active program takes beside the shared prefix."""
        if program.lends:
            self.lent_blocks += blocks
            if self.several:
                self.placed_lent_blocks[program.replica] += blocks
            return
        self.demand_blocks += blocks
        if self.several:
            self.placed_blocks[program.replica] += blocks


@dataclass(slots=True, kw_only=True, eq=False)
class Programs:
    """Every program that was told of and is not forgotten, by its name."""

    estimates: Estimates
    by_name: dict[str, Program] = kept(dict, "programs")
    queue: dict[str, None] = kept(dict)  # waiting roots, in the order in which they began to
    unasked: dict[str, None] = kept(dict)  # roots that hold a slot which nobody granted
    gated: bool = kept(bool)  # the last turn without a grant was held at a gate, and did not just run
    active_changes: int = kept(int)  # counts who came and went
    ordered_held: dict[str, None] = kept(dict)  # roots that an operator holds
    draining: bool = kept(bool)  # an operator wants nobody to be let in
    # What the next tick has to look at; kept because a snapshot may be taken before that tick.
    askers: dict[str, None] = kept(dict)  # roots that hold a slot and have held turns
    changed: dict[str, None] = kept(dict)  # programs that began to act, or to wait for a child

    active: dict[str, None] = field(default_factory=dict)
    dormant: dict[str, None] = field(default_factory=dict)  # they neither hold a slot nor ask for one
    children: dict[str, dict[str, None]] = field(default_factory=dict)  # by root, for roots that have any
    charges: Charges = field(default_factory=Charges)

    def __post_init__(self) -> None:
        for name, program in self.by_name.items():
            if program.status is Status.ACTIVE:
                self.active[name] = None
            elif program.status is not Status.ENDED and name not in self.queue:
                self.dormant[name] = None
            if program.parent_id:
                self.children.setdefault(program.root_id, {})[name] = None

    # What others read

    @property
    def demand_blocks(self) -> int:
        """D: blocks that the active programs need resident, a shared prefix counted once."""
        return self.charges.demand_blocks + (self.shared_blocks if self.charges.charged else 0)

    @property
    def shared_blocks(self) -> int:
        """The prefix that programs share, in blocks."""
        return self.estimates.blocks(self.estimates.shared_tokens.value)

    def queued(self, left: Callable[[Program], float] | None = None) -> list[QueuedProgram]:
        """The root programs that wait for a slot, in the order in which they began to.

        ``left`` tells what each is expected to hold until its end, if anybody asks.
        """
        programs = (self.by_name[name] for name in self.queue)
        return [QueuedProgram.of(program, left(program) if left else 0.0) for program in programs]

    def children_of(self, root_id: str) -> Iterable[str]:
        """The names of the root's children, and of theirs."""
        return self.children.get(root_id, ())

    def root_of(self, program: Program, now_ns: int) -> Program:
        """The program that holds the slot: it outlives its own record's forgetting while children come."""
        return program if not program.parent_id else self.heard_of(program.root_id, now_ns)

    def take_changed(self, most: int) -> list[Program]:
        """The first ``most`` of the programs that began to act, or to wait for a child, and were not taken yet."""
        names = list(islice(self.changed, most))
        for name in names:
            del self.changed[name]
        return [self.by_name[name] for name in names if name in self.by_name]

    # What moves them

    def heard_of(self, name: str, now_ns: int) -> Program:
        """The record of that name; a root's, where it has to be made."""
        program = self.by_name.get(name)
        if program is None:
            return self.make(name, now_ns)
        program.last_seen_ns = now_ns
        return program

    def make(self, name: str, now_ns: int, *, tenant: str = "", parent_id: str = "", root_id: str = "") -> Program:
        """A new record; ``root_id``: whose slot it rides, if it is a child."""
        program = self.by_name[name] = Program(
            program_id=name,
            tenant=tenant,
            parent_id=parent_id if root_id else "",
            root_id=root_id or name,
            arrived_at_ns=now_ns,
            last_seen_ns=now_ns,
        )
        if root_id:
            self.children.setdefault(root_id, {})[name] = None
        self.dormant[name] = None
        return program

    def join(self, program: Program, parent_id: str, root: Program) -> None:
        """What was a root is a child of ``parent_id`` from now on, and its children are its new root's."""
        name, active = program.program_id, program.status is Status.ACTIVE
        self.charges.count(program, -active)
        program.parent_id = parent_id
        self.charges.count(program, active)
        self.active_changes += active
        family = {name: None, **self.children.pop(name, {})}
        self.children.setdefault(root.program_id, {}).update(family)
        for child in family:
            self.by_name[child].root_id = root.program_id

    def forget(self, program: Program) -> None:
        """The program is known no more."""
        del self.by_name[program.program_id]
        if program.parent_id:
            siblings = self.children[program.root_id]
            del siblings[program.program_id]
            if not siblings:
                del self.children[program.root_id]

    def move(self, program: Program, trigger: Trigger, now_ns: int) -> None:
        """Apply one row of the transition table, and keep the sums."""
        before, after = program.status, next_status(program.status, trigger)
        if before is after:
            return
        name, is_root = program.program_id, not program.parent_id
        self.lend(program)
        if before is Status.ENDED and program.learned_turns:
            self.estimates.turns.add(program.learned_turns, by=-1)
            self.estimates.lives.revived(program.kind, program.learned_turns)
            program.learned_turns = 0
        program.status = after
        program.ended_by_word = False
        program.warm = False
        program.queued_at_ns = now_ns if after is Status.WAITING and program.queued_turns else 0
        if after is Status.ACTIVE:
            self.charges.count(program, 1)
            self.active[name] = None
            self.active_changes += 1
            program.idle_since_ns = 0 if program.open_turns or program.open_tools else now_ns
        elif before is Status.ACTIVE:
            self.charges.count(program, -1)
            del self.active[name]
            self.active_changes += 1
            self.unasked.pop(name, None)
            program.retained_until_ns = 0
        if after is Status.PAUSED and is_root:
            self._pause_children(name, now_ns)
        self._requeue(program)

    def _pause_children(self, root_id: str, now_ns: int) -> None:
        """Who rides a slot loses it with the root."""
        for name in self.children_of(root_id):
            if self.by_name[name].status is Status.ACTIVE:
                self.move(self.by_name[name], Trigger.PAUSE, now_ns)

    def queue_more(self, root: Program, turns: int, blocks: int) -> None:
        """So many held turns more wait for the root's slot."""
        root.queued_turns += turns
        root.queued_blocks += blocks
        if root.program_id in self.queue:
            self.charges.queued_blocks += blocks
        self._requeue(root)

    def _requeue(self, program: Program) -> None:
        """Put a root into the queue, or take it out, as its state says."""
        name, status = program.program_id, program.status
        belongs = status is Status.WAITING and program.queued_turns > 0 and not program.parent_id
        if belongs and name not in self.queue:
            self.queue[name] = None
            self.charges.queued_blocks += program.queued_blocks
        elif not belongs and name in self.queue:
            del self.queue[name]
            self.charges.queued_blocks -= program.queued_blocks
        if status is Status.ACTIVE and program.queued_turns:
            self.askers[name] = None
        if not belongs and status in (Status.WAITING, Status.PAUSED):
            self.dormant[name] = None
        else:
            self.dormant.pop(name, None)

    # What they are charged with

    def charge(self, program: Program, blocks: int) -> None:
        """Set what the program's context takes."""
        shared = min(self.shared_blocks, blocks)
        if program.status is Status.ACTIVE:
            self.charges.charge(program, blocks - shared - program.kv_blocks + program.shared_blocks)
        program.kv_blocks, program.shared_blocks = blocks, shared

    def lend(self, program: Program, lends: bool = False) -> None:
        """Whether others may have the room of the program, which is likely to be away for long."""
        if lends is not program.lends and program.status is Status.ACTIVE:
            self.charges.count(program, -1)
            program.lends = lends
            self.charges.count(program, 1)

    def settle(self, program: Program, replica: str) -> None:
        """The program runs on ``replica`` from now on; one that is active is charged there."""
        charged = program.status is Status.ACTIVE
        self.charges.count(program, -charged)
        program.replica = replica
        self.charges.count(program, charged)

    def recount(self, *, several: bool) -> None:
        """Sum up anew what all are charged with."""
        self.charges = Charges.of(self.by_name, several=several)


def note_idle(program: Program, now_ns: int) -> None:
    """The program's gap begins if nothing of it is open."""
    if not program.open_turns and not program.open_tools:
        program.idle_since_ns = now_ns


def waiting_roots(programs: Iterable[Program]) -> list[Program]:
    """Root programs that wait for a slot with at least one held turn."""
    return [p for p in programs if p.status is Status.WAITING and p.queued_turns and not p.parent_id]
