"""The programs: their records, who holds a slot, who waits for one, who is whose child, and the sums over them.

Sums that every decision needs are kept as they change, so that an event costs the same with ten programs and with a
hundred thousand. They can always be recomputed from the records (``Charges.of``), which a snapshot's loading does
and the stateful tests compare.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from controlplane.core.estimators.workload import Estimates
from controlplane.core.ledger.accounts import Accounts, payer_of
from controlplane.core.ledger.index import Index, Tally
from controlplane.core.ledger.persisted import persisted
from controlplane.core.model.lifecycle import Trigger, next_status
from controlplane.core.model.tenancy import Tenancy
from controlplane.core.model.types import Program, Status, Tier

_MOST_CHILDREN = 4096  # of one root, whose end is theirs, at once; whoever comes beyond is a root of its own


@dataclass(slots=True, kw_only=True)
class Charges:
    """Sums over the programs."""

    demand_blocks: int = 0  # charges of active programs, without the prefix that they share
    charged: int = 0  # programs that are charged
    lent_blocks: int = 0  # of active programs that lend their room, which are not
    active_roots: int = 0
    queued_blocks: int = 0
    groups: Tally = field(default_factory=Tally)  # of rollouts: members that are charged, by group and place
    # By place of the engine, where there are several: the charges of the active programs that ran there last.
    several: bool = False
    placed_blocks: Tally = field(default_factory=Tally)
    placed: Tally = field(default_factory=Tally)
    placed_lent_blocks: Tally = field(default_factory=Tally)
    touched: set[str] = field(default_factory=set, compare=False)  # places whose sums changed, for ``demand``

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
            self.placed.add(program.replica, by * (not program.lends))
            self.touched.add(program.replica)
        self.charge(program, by * (program.kv_blocks - program.shared_blocks))
        if program.group_blocks and not program.lends:
            self._share_prompt(program, by)

    def _share_prompt(self, program: Program, by: int) -> None:
        """What a group begins with counts once on each engine, while a member there is charged."""
        key = f"{program.group}/{program.group_blocks}/{program.replica}"
        had = self.groups[key] > 0
        self.groups.add(key, by)
        if (has := self.groups[key] > 0) is not had:
            self.charge(program, program.group_blocks if has else -program.group_blocks)

    def charge(self, program: Program, blocks: int) -> None:
        """Add to what an active program takes beside the shared prefix."""
        if program.lends:
            self.lent_blocks += blocks
        else:
            self.demand_blocks += blocks
        if self.several:
            placed = self.placed_lent_blocks if program.lends else self.placed_blocks
            placed.add(program.replica, blocks)
            self.touched.add(program.replica)

    def demanded_of(self, place: str, shared_blocks: int, more: int = 0) -> int:
        """Of one of several engines: what was placed there, the prefix that all share, and so much ``more``."""
        return max(0, self.placed_blocks[place] + (shared_blocks if self.placed[place] else 0) + more)


@dataclass(slots=True, kw_only=True, eq=False)
class Programs:
    """Every program that was told of and is not forgotten, by its name."""

    estimates: Estimates
    by_name: dict[str, Program] = persisted(dict, "programs")
    queue: dict[str, None] = persisted(dict)  # waiting roots, in the order in which they began to
    unasked: dict[str, None] = persisted(dict)  # roots that hold a slot which nobody granted
    gated: bool = persisted(bool)  # the last turn without a grant was held at a gate, and did not just run
    active_changes: int = persisted(int)  # counts who came and went
    ordered_held: dict[str, None] = persisted(dict)  # roots that an operator holds
    draining: bool = persisted(bool)  # an operator wants nobody to be let in
    moves: int = persisted(int)  # from one engine to another, of all programs there ever were
    # What the next tick has to look at; kept because a snapshot may be taken before that tick.
    askers: dict[str, None] = persisted(dict)  # roots that hold a slot and have held turns
    changed: dict[str, None] = persisted(dict)  # programs that began to act, or to wait for a child
    # In the order in which they became so: a restored daemon looks at them in the same.
    active: dict[str, None] = persisted(dict)
    dormant: dict[str, None] = persisted(dict)  # they neither hold a slot nor ask for one

    accounts: Accounts = field(default_factory=Accounts)
    slots_for_children: bool = False  # sub-agents that come from now on have slots of their own
    children: dict[str, dict[str, None]] = field(default_factory=dict)  # by root, for roots that have any
    accused: Index = field(default_factory=Index)  # quarantined ones, by the publisher whose state clears them
    charges: Charges = field(default_factory=Charges)

    def __post_init__(self) -> None:
        is_active = {name: program.status is Status.ACTIVE for name, program in self.by_name.items()}
        is_dormant = {
            name: not is_active[name] and program.status is not Status.ENDED and name not in self.queue
            for name, program in self.by_name.items()
        }
        self.active = {name: None for name in (*self.active, *self.by_name) if is_active.get(name)}
        self.dormant = {name: None for name in (*self.dormant, *self.by_name) if is_dormant.get(name)}
        for name, program in self.by_name.items():
            if program.parent_id:
                self.children.setdefault(program.root_id, {})[name] = None
            if program.quarantined:
                self.accused.add(program.accused, name)

    # What others read

    @property
    def demand_blocks(self) -> int:
        """D: blocks that the active programs need resident, a shared prefix counted once."""
        return self.charges.demand_blocks + (self.shared_blocks if self.charges.charged else 0)

    @property
    def shared_blocks(self) -> int:
        return self.estimates.shared_blocks

    def children_of(self, root_id: str) -> Iterable[str]:
        return self.children.get(root_id, ())

    def has_place(self, root: Program, *, joining: Program | None = None) -> bool:
        """Whether the root may have one child more, and those of the one that is ``joining``."""
        more = 1 + len(self.children.get(joining.program_id, ())) if joining is not None else 1
        return len(self.children.get(root.program_id, ())) + more <= _MOST_CHILDREN

    def root_of(self, program: Program, now_ns: int) -> Program:
        """The program that holds the slot: it outlives its own record's forgetting while children come."""
        return program if not program.parent_id else self.get_or_create(program.root_id, now_ns)

    def take_changed(self, most: int) -> list[Program]:
        """The first ``most`` of the programs that began to act, or to wait for a child, and were not taken yet."""
        names = list(islice(self.changed, most))
        for name in names:
            del self.changed[name]
        return [self.by_name[name] for name in names if name in self.by_name]

    # What moves them

    def get_or_create(self, name: str, now_ns: int) -> Program:
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
            root = self.by_name[root_id]
            root.had_children = True
            program.payer = root.payer
        self.dormant[name] = None
        return program

    def reparent(self, program: Program, parent_id: str, root: Program) -> None:
        """What was a root is a child of ``parent_id`` from now on, and its children are its new root's."""
        name, active = program.program_id, program.status is Status.ACTIVE
        self._hand_over(program, root)
        self.charges.count(program, -active)
        program.parent_id = parent_id
        self.charges.count(program, active)
        self.active_changes += active
        family = {name: None, **self.children.pop(name, {})}
        self.children.setdefault(root.program_id, {}).update(family)
        root.had_children = True
        for child in family:
            self.by_name[child].root_id = root.program_id

    def detach(self, program: Program) -> None:
        """What was a child, and has ended, is nobody's any more."""
        siblings = self.children[program.root_id]
        del siblings[program.program_id]
        if not siblings:
            del self.children[program.root_id]
        program.parent_id, program.root_id = "", program.program_id

    def forget(self, program: Program) -> None:
        del self.by_name[program.program_id]
        self.accused.drop(program.accused, program.program_id)
        if program.parent_id:
            self.detach(program)

    def quarantine(self, program: Program, publisher: str) -> None:
        """Decide nothing from its figures until the publisher, which contradicts what is known, tells its state."""
        self.accused.drop(program.accused, program.program_id)
        program.quarantined, program.accused = True, publisher
        self.accused.add(publisher, program.program_id)

    def acquit_all_of(self, publisher: str) -> None:
        for name in self.accused.pop(publisher, ()):
            program = self.by_name[name]
            program.quarantined, program.accused = False, ""

    def move(self, program: Program, trigger: Trigger, now_ns: int) -> None:
        """Apply one row of the transition table, and keep the sums."""
        before, after = program.status, next_status(program.status, trigger)
        if before is after:
            return
        name, is_root = program.program_id, not program.parent_id
        self.meter(program, now_ns)
        self.lend(program)
        if before is Status.ENDED and program.learned_turns:
            self.estimates.turns.add(program.learned_turns, by=-1)
            self.estimates.lives.undo_end(program.class_key, program.learned_turns)
            if self.queue and is_root:
                self.estimates.departures.undo_end()
            program.learned_turns = 0
        if program.silenced:
            self.estimates.gaps.came_back()
        program.status = after
        program.ended_by_word = program.rests = program.silenced = False
        program.warm = False
        program.queued_at_ns = now_ns if after is Status.WAITING and program.queued_turns else 0
        if after is Status.ACTIVE:
            program.entered_by = program.asked
            self.charges.count(program, 1)
            self.active[name] = None
            self.active_changes += 1
            program.idle_since_ns = 0 if program.open_turns or program.open_tools else now_ns
        elif before is Status.ACTIVE:
            self.charges.count(program, -1)
            del self.active[name]
            self.active_changes += 1
            self.unasked.pop(name, None)
            self.accounts.withdraw(program)
            program.retained_until_ns = 0
        if after is Status.PAUSED and is_root:
            self._pause_children(name, now_ns)
        self._requeue(program)

    def _pause_children(self, root_id: str, now_ns: int) -> None:
        for name in self.children_of(root_id):
            if self.by_name[name].status is Status.ACTIVE:
                self.move(self.by_name[name], Trigger.PAUSE, now_ns)

    def queue_more(self, root: Program, turns: int, blocks: int) -> None:
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

    def meter(self, program: Program, now_ns: int) -> None:
        """Charge its tenant with what the program has held until now, before that changes."""
        accounts = self.accounts
        if not accounts.on:
            return
        holds = program.status is Status.ACTIVE and not program.lends
        tokens = (program.kv_blocks - program.shared_blocks) * self.estimates.block_tokens if holds else 0
        accounts.hold(program, self.whose(program), tokens, now_ns)

    def whose(self, program: Program) -> Program:
        """The program that its turns and its memory are charged to: its root, if that is known."""
        return self.by_name.get(program.root_id, program)

    def set_account(self, program: Program, account: str) -> None:
        """Whose the program is, by the word of its gate; a child is charged to its root's tenant."""
        program.account = account
        if not program.parent_id:
            self._pay(program, payer_of(self.accounts.tenancy, account))

    def _pay(self, root: Program, payer: str) -> None:
        if root.payer != payer:
            pledged_token_s = root.pledged_token_s
            self.accounts.withdraw(root)
            root.payer = payer
            if pledged_token_s:
                self.accounts.pledge(root, pledged_token_s)
        for name in self.children_of(root.program_id):
            self.by_name[name].payer = payer

    def set_tenancy(self, tenancy: Tenancy, now_ns: int = 0) -> None:
        """The tenants are these from now on. What was held before is charged by the old tables, unless at 0."""
        if tenancy != self.accounts.tenancy:
            for name in self.active if now_ns else ():
                self.meter(self.by_name[name], now_ns)
            self.accounts.tenancy = tenancy
            for program in self.by_name.values():
                if not program.parent_id:
                    self._pay(program, payer_of(tenancy, program.account))
        if not self.accounts.on:
            for program in self.by_name.values():
                program.metered_at_ns = 0  # what is held while nobody counts is nobody's

    def count_runs(self) -> None:
        """Keep accounts though there are no tenants: a client has told what its run may have."""
        self.accounts.counts_runs = True

    def _hand_over(self, program: Program, root: Program) -> None:
        """What a root has had that turns out to be a child is its new root's."""
        self.accounts.withdraw(program)
        root.kv_token_s += program.kv_token_s
        root.turns_begun += program.turns_begun
        program.kv_token_s, program.turns_begun = 0.0, 0
        for name in (program.program_id, *self.children_of(program.program_id)):
            self.by_name[name].payer = root.payer

    def charge(self, program: Program, blocks: int, now_ns: int) -> None:
        """Set what the program's context takes."""
        self.meter(program, now_ns)
        shared = min(max(self.shared_blocks, program.group_blocks), blocks)
        if program.status is Status.ACTIVE:
            self.charges.charge(program, blocks - shared - program.kv_blocks + program.shared_blocks)
        program.kv_blocks, program.shared_blocks = blocks, shared

    def share_prompt(self, program: Program, blocks: int) -> None:
        """So much of what the program holds its group shares."""
        active = program.status is Status.ACTIVE
        self.charges.count(program, -active)
        program.group_blocks = blocks
        program.shared_blocks = min(max(self.shared_blocks, blocks), program.kv_blocks)
        self.charges.count(program, active)

    def lend(self, program: Program, lends: bool = False, now_ns: int = 0) -> None:
        """Whether others may have the room of the program, which is likely to be away for long."""
        if lends is not program.lends and program.status is Status.ACTIVE:
            if now_ns:
                self.meter(program, now_ns)
            self.charges.count(program, -1)
            program.lends = lends
            self.charges.count(program, 1)

    def settle(self, program: Program, replica: str) -> None:
        """The program runs on ``replica`` from now on; one that is active is charged there."""
        if program.replica not in ("", replica):
            program.moves += 1
            self.moves += 1
        charged = program.status is Status.ACTIVE
        self.charges.count(program, -charged)
        program.replica = replica
        self.charges.count(program, charged)

    def place(self, program: Program, replica: str, *, moves: bool) -> None:
        """Its next turn goes to ``replica``. What another engine has of it is nobody's, unless it is sent there."""
        if program.replica not in ("", replica):
            program.retained_until_ns = 0
            if not moves:
                program.kv_tier, program.warm = Tier.NONE, False
        program.placed = replica
        self.settle(program, replica)

    def leave(self, replica: str, *, gone: bool = True) -> None:
        """Nothing more goes to ``replica``: who holds a slot and is between two turns is placed anew.

        ``gone``: nobody is there any more, and nothing of them.
        """
        for program in self.by_name.values():
            if replica not in (program.replica, program.placed):
                continue
            if gone and program.replica == replica:
                self.settle(program, "")
            if gone and program.placed == replica:
                program.placed = ""
            if program.status is Status.ACTIVE and not program.open_turns:
                program.placed_turn = -1
                self.changed[program.program_id] = None

    def recount(self, *, several: bool) -> None:
        self.charges = Charges.of(self.by_name, several=several)


def note_idle(program: Program, now_ns: int) -> None:
    """The program's gap begins if nothing of it is open."""
    if not program.open_turns and not program.open_tools:
        program.idle_since_ns = now_ns


def waiting_roots(programs: Iterable[Program]) -> list[Program]:
    """Root programs that wait for a slot with at least one held turn."""
    return [p for p in programs if p.status is Status.WAITING and p.queued_turns and not p.parent_id]
