"""How the run of a program begins and ends, whose child it is, and the slot that it is granted.

A program that ran by itself may turn out to be a child: announcements come in batches, and a child's first request
may overtake its own (docs/adr/0021).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.groups import Groups
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs, note_idle
from controlplane.core.ledger.tools import Tools
from controlplane.core.model import events as ev
from controlplane.core.model.commands import Discard, Pause, ProgramCommand, Release
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.places import serves
from controlplane.core.model.steps import Steps
from controlplane.core.model.types import Program, Status, Tier, seconds

_BETWEEN_NS = seconds(10)  # between its turns and tools, as far as they are reported, a child is silent for less
_LIKELY = 0.5
_AT_ONCE = 1024  # programs that are forgotten between two pauses
_RESTS_NS = seconds(3600)  # that a person may think, and come back to the same program
_MOST_RESTING = 4096  # programs that have ended; while there are more they are forgotten at once


@dataclass(slots=True, kw_only=True)
class PendingRelease:
    """A program that ended while gate and engine hold something for it."""

    reason: str
    pinned: bool
    slot: bool = True  # it had one
    frees: bool = False  # its context is to go at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEnd:
    """A goodbye whose program still has running children, or may be asked again at once (``for_now``)."""

    reason: str
    for_now: bool
    since_ns: int


@dataclass(slots=True, kw_only=True, eq=False)
class Runs:
    """Programs that come, are let in, and go; with what others have yet to be told of that."""

    programs: Programs
    tools: Tools
    gates: Gates
    groups: Groups
    farewells: dict[str, PendingRelease] = persisted(dict)  # ended holding a slot; nobody was told yet
    overheld: dict[str, None] = persisted(dict)  # a gate missed that their slot was taken back
    unused: dict[str, None] = persisted(dict)  # whose first turn left without having run
    untold: dict[str, None] = persisted(dict)  # children that a gate has to be told of
    leaving: dict[str, PendingEnd] = persisted(dict)  # programs that said goodbye, and have not ended yet
    _ended: deque[tuple[int, str]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        programs = self.programs.by_name.values()
        self._ended.extend(sorted((p.last_seen_ns, p.program_id) for p in programs if p.status is Status.ENDED))

    # Events

    def program_arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        self._begin_anew(event, now_ns)
        program = self.get_or_create_child(event.program_id, now_ns, parent_id=event.parent_id, tenant=event.tenant)
        if not (program.parent_id or program.sent_by) or serves(event.publisher):
            return  # what a gate or an engine knows of children, gates know
        if program.parent_id:
            self.untold[program.program_id] = None
        parent = self.programs.by_name.get(program.parent_id or program.sent_by)
        if parent is not None and parent.open_tools and not event.aside:
            self.tools.delegate(parent)

    def _begin_anew(self, event: ev.ProgramArrived, now_ns: int) -> None:
        """An ended child's name may be used again, for another run's child: its old root is not revived for it."""
        programs = self.programs
        known, parent = programs.by_name.get(event.program_id), programs.by_name.get(event.parent_id)
        if known is None or not known.parent_id or known.status is not Status.ENDED:
            return
        if parent is None or programs.root_of(parent, now_ns).program_id != known.root_id:
            programs.detach(known)

    def program_ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        program = self.programs.get_or_create(event.program_id, now_ns)  # a gate may tell of a grant that we forgot
        reason = event.reason or "its run ended"
        program.frees = program.frees or event.frees
        if event.for_now:
            for key in self.tools.detached_of(program):
                self.tools.drop(key, now_ns)
        waits = event.for_now or (not event.with_children and self.family_runs(program, now_ns, explicit=True))
        if waits and program.status is not Status.ENDED:
            self.leaving[program.program_id] = PendingEnd(reason=reason, for_now=event.for_now, since_ns=now_ns)
        elif not event.for_now:
            self.end_explicitly(program, now_ns, reason)
        elif not program.ended_by_word:  # silence was quicker than its word
            program.rests, program.silenced = True, False

    def end_explicitly(self, program: Program, now_ns: int, reason: str) -> None:
        """Its agent said that the run is over; its children have ended with it."""
        self.end(program, now_ns, reason)
        for name in (program.program_id, *self.programs.children_of(program.program_id)):
            family = self.programs.by_name[name]
            family.ended_by_word, family.silenced = True, False

    def family_runs(self, root: Program, now_ns: int, *, explicit: bool = False) -> bool:
        """Whether a child runs: it has a turn or a tool, had one just now, or is likely to come back.

        ``explicit``: its root will not come back, so that what is only likely does not count.
        """
        if self._has_busy_child(root):
            return True
        family = [self.programs.by_name[name] for name in self.programs.children_of(root.program_id)]
        chance = self.programs.estimates.chance_of_return
        between = [c for c in family if c.status is Status.ACTIVE and c.gap_since_ns and not c.called_nothing]
        return any(
            now_ns - child.idle_since_ns < _BETWEEN_NS or (not explicit and chance(child, now_ns) >= _LIKELY)
            for child in between
        )

    def leave(self, now_ns: int, stays_ns: int) -> None:
        """End who said goodbye and has no running children any more.

        One that left for now stays for ``stays_ns``, and while it has a turn or a tool of its own.
        """
        for name, goodbye in list(self.leaving.items()):
            program = self.programs.by_name.get(name)
            if program is None:
                del self.leaving[name]
            elif program.status is Status.ENDED:  # from silence
                del self.leaving[name]
                program.rests = goodbye.for_now and not program.ended_by_word
                program.silenced = False
            elif self.family_runs(program, now_ns, explicit=not goodbye.for_now):
                continue
            elif not goodbye.for_now:
                del self.leaving[name]
                self.end_explicitly(program, now_ns, goodbye.reason)
            elif program.open_turns or program.open_tools or program.queued_turns:
                continue
            elif now_ns - max(goodbye.since_ns, program.idle_since_ns, program.gap_since_ns) >= stays_ns:
                del self.leaving[name]
                self.end(program, now_ns, goodbye.reason)
                program.rests = True

    def turn_abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        """A held turn left; or one that had been let in never ran: nothing else of it will come."""
        if event.turn_id in self.gates.held:
            self.gates.let_go(event.turn_id, now_ns)
            return
        program = self.programs.by_name.get(event.program_id)
        if program is None:
            return
        self.groups.leaves(program)
        if not program.turn_index:
            self.unused[program.program_id] = None
        elif not (program.open_turns or program.queued_turns):
            program.gap_unanswered = program.gap_unanswered or not program.gap_since_ns
            program.gap_since_ns = program.gap_since_ns or now_ns  # it goes on as after any turn

    def operator_orders(self, event: ev.OperatorOrders, now_ns: int) -> None:
        self.programs.ordered_held = dict.fromkeys(event.held)
        self.programs.draining = event.draining

    # Who it is

    def get_or_create_child(self, name: str, now_ns: int, *, parent_id: str, tenant: str = "") -> Program:
        """The record of that name, whose parent may be told."""
        programs = self.programs
        program = programs.by_name.get(name)
        if programs.slots_for_children:
            program = program or programs.make(name, now_ns, tenant=tenant)
            program.last_seen_ns = now_ns
            self._note_sender(program, programs.by_name.get(parent_id), tenant or program.tenant)
            return program
        if program is not None:
            if parent_id and not program.parent_id and parent_id != name:
                self.adopt(program, parent_id, tenant or program.tenant, now_ns)
            program.last_seen_ns = now_ns
            return program
        root_id = ""
        if parent_id and parent_id != name:
            root = programs.root_of(programs.get_or_create(parent_id, now_ns), now_ns)
            joins = programs.has_place(root) and not _are_strangers(tenant, root.tenant)
            root_id = root.program_id if joins else ""
        return programs.make(name, now_ns, tenant=tenant, parent_id=parent_id, root_id=root_id)

    def _note_sender(self, program: Program, parent: Program | None, tenant: str) -> None:
        """Whose sub-agent a program with a slot of its own is; not a stranger's, nor its own."""
        is_child = parent is not None and parent is not program and not program.parent_id
        if parent is not None and is_child and not _are_strangers(tenant, parent.tenant):
            program.sent_by = parent.program_id

    def adopt(self, program: Program, parent_id: str, tenant: str, now_ns: int) -> None:
        """Make a root a child of ``parent_id``: its held turns, its children and its slot go over to its new root.

        Not where that is itself, a stranger's, or full; nor if it runs and its parent has ended, whom that would
        revive.
        """
        programs, held_of = self.programs, self.gates.held_of
        root = programs.root_of(programs.get_or_create(parent_id, now_ns), now_ns)
        active, ended = program.status is Status.ACTIVE, root.status is Status.ENDED
        if root is program or _are_strangers(tenant, root.tenant) or (active and ended):
            return
        if not programs.has_place(root, joining=program):
            return
        name, since_ns = program.program_id, program.queued_at_ns
        turns, blocks, held = program.queued_turns, program.queued_blocks, held_of.pop(name, {})
        programs.queue_more(program, -turns, -blocks)
        program.queued_at_ns = 0
        programs.askers.pop(name, None)
        programs.reparent(program, parent_id, root)
        was_unasked = name in programs.unasked
        programs.unasked.pop(name, None)
        if active and root.status is not Status.ACTIVE:
            programs.move(root, Trigger.SUBMIT, now_ns)
            if was_unasked:
                programs.unasked[root.program_id] = None
        if turns:
            held_of.setdefault(root.program_id, {}).update(held)
            programs.move(root, Trigger.QUEUE, now_ns)
            if root.status is not Status.ACTIVE:
                root.queued_at_ns = min(since_ns or now_ns, root.queued_at_ns or now_ns)
            programs.queue_more(root, turns, blocks)

    # Its slot and its end

    def refuse(self, program: Program, now_ns: int, reason: str, *, for_good: bool) -> None:
        """Gates refuse the program's turns, and its children's; ``for_good``: its run is over."""
        for turn_id in list(self.gates.held_of.get(program.root_id, ())):
            self.gates.let_go(turn_id, now_ns)
        if for_good and program.status is not Status.ENDED:
            self.end(program, now_ns, reason)

    def grant(self, program: Program, now_ns: int) -> None:
        """The program's held turns are let go; a root takes a slot, a child rides its root's."""
        if program.status is Status.ENDED:
            return
        blocks, accounts = program.kv_blocks, self.programs.accounts
        if program.promised_ns and program.queued_at_ns:
            waited_ns = now_ns - program.queued_at_ns
            self.programs.estimates.departures.waited(program.promised_ns, waited_ns)
        program.promised_ns = program.urgent_at_ns = 0
        if accounts.on and program.status is not Status.ACTIVE and not program.parent_id:
            accounts.pledge(program, ProgramForecaster(self.programs.estimates).token_s(program))
        for turn_id, held in self.gates.of(program):
            blocks = max(blocks, held.blocks)
            self.gates.let_go(turn_id, now_ns)
        # Until the engine reports the turn, the estimate stands for it: the next tick may come before.
        self.programs.charge(program, blocks, now_ns)
        self.programs.move(program, Trigger.ADMIT, now_ns)
        self.groups.granted(program, now_ns)
        self.programs.unasked.pop(program.program_id, None)
        note_idle(program, now_ns)

    def end(self, program: Program, now_ns: int, reason: str) -> None:
        """The run is over, and its children's with it; the gate and the engine will be told."""
        if program.status is not Status.ENDED:
            program.ended_at_ns = now_ns
            if program.turn_index and not program.quarantined:
                self._learn_from(program)
        has_slot, frees = program.status is Status.ACTIVE, program.frees and program.status is not Status.ENDED
        if has_slot or frees:
            self.farewells[program.program_id] = PendingRelease(
                reason=reason, pinned=program.retained_until_ns > now_ns, slot=has_slot, frees=frees
            )
        if not program.parent_id:
            for name in self.programs.children_of(program.program_id):
                child = self.programs.by_name[name]
                child.frees = child.frees or frees
                self.end(child, now_ns, f"its root ended: {reason}")
        program.frees = False
        if program.status is not Status.ENDED:
            self.programs.move(program, Trigger.END, now_ns)
            self.groups.leaves(program)
            self._close(program, now_ns)

    def end_silent(self, program: Program, now_ns: int, reason: str, chance: float) -> None:
        """Take it for ended, at that chance of its return: should it come back, the estimate was too low."""
        is_judged = program.gap_since_ns > 0 and not program.quarantined
        if is_judged:
            self.programs.estimates.gaps.took_for_ended(chance)
        self.end(program, now_ns, reason)
        program.silenced = is_judged

    def _learn_from(self, program: Program) -> None:
        estimates = self.programs.estimates
        program.learned_turns = program.turn_index
        estimates.turns.add(program.turn_index)
        if self.programs.queue and not program.parent_id:
            estimates.departures.ended()
        estimates.lives.ended(
            program.class_key,
            program.turn_index,
            expected_tokens=program.expected_tokens,
            actual_tokens=program.peak_tokens,
        )

    def _close(self, program: Program, now_ns: int) -> None:
        """Nothing of an ended program waits or acts any more; its open turns end by themselves."""
        for turn_id, _ in self.gates.of(program):
            self.gates.let_go(turn_id, now_ns)
        self.tools.drop_all_of(program, now_ns)
        program.kv_tier = Tier.NONE
        self._ended.append((now_ns, program.program_id))

    def forget_ended(self, now_ns: int, horizon_ns: int) -> Steps[None]:
        """Drop programs that had ended by ``horizon_ns``."""
        programs, looked_at = self.programs, 0
        while self._ended and self._ended[0][0] <= horizon_ns:
            looked_at += 1
            if not looked_at % _AT_ONCE:
                yield
            _, name = self._ended.popleft()
            program = programs.by_name.get(name)
            if program is None or program.status is not Status.ENDED:
                continue
            rests = (program.rests or program.silenced) and now_ns - program.ended_at_ns < _RESTS_NS
            rests = rests and len(self._ended) < _MOST_RESTING
            if rests or program.open_turns or program.open_tools or name in programs.children:
                self._ended.append((now_ns, name))  # or an end is still to come: a turn's, a late tool's, a child's
            else:
                programs.forget(program)

    def releases_due(self) -> Iterator[ProgramCommand]:
        """What tells gates and engines, once, of slots that are over. Who came back at once keeps what it has."""
        programs = self.programs.by_name
        for name, release in self.farewells.items():
            if programs[name].status is Status.ACTIVE:
                continue
            if release.slot:
                yield Pause(program_id=name, reason=f"ended: {release.reason}")
            if release.frees and programs[name].status is Status.ENDED:
                yield Discard(program_id=name, reason=f"ended: {release.reason}")
            elif release.pinned:
                yield Release(program_id=name, reason="ended")
        self.farewells.clear()
        for name in self.overheld:  # their turns would pass until the grant's lease ends
            program = programs.get(name)
            if program is None or program.status is not Status.ACTIVE:
                yield Pause(program_id=name, reason="a gate missed that its slot was taken back")
        self.overheld.clear()
        for name in list(self.unused):
            program = programs.get(name)
            if program is not None and (program.open_turns or program.open_tools or self._has_busy_child(program)):
                continue
            del self.unused[name]
            if program is None or program.turn_index or program.queued_turns or program.parent_id:
                continue  # it runs, its next turn waits already, or the slot is another's
            if program.status is Status.ACTIVE:
                yield Pause(program_id=name, reason="its first turn was refused")

    def _has_busy_child(self, program: Program) -> bool:
        children = (self.programs.by_name[name] for name in self.programs.children_of(program.program_id))
        return any(child.open_turns or child.open_tools for child in children)


def _are_strangers(tenant: str, other: str) -> bool:
    """Whether these are two tenants; a program of which nobody said whose it is may be anybody's."""
    return bool(tenant and other) and tenant != other
