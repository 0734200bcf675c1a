"""The ledger applies events and commands; it holds the only mutable program state.

Sums that every decision needs (KV demand, active roots, tools, queued blocks) are kept as they change, so that an
event costs the same with ten programs and with a hundred thousand. They can always be recomputed from the records
(``Totals.of``), which a snapshot's loading does and the stateful tests compare.

This file holds the primitives; what each kind of event does with them is in ``handlers``.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from math import ceil

from controlplane.core import events as ev
from controlplane.core.adoption import adopt, are_strangers
from controlplane.core.errors import RemoteEventError
from controlplane.core.handlers import HANDLERS, drop_publisher
from controlplane.core.lateness import Lateness
from controlplane.core.lifecycle import Trigger, next_status
from controlplane.core.publishers import is_new
from controlplane.core.records import Farewell, Held, LedgerState, ToolCall, Totals, whole
from controlplane.core.types import Program, QueuedProgram, Status, Tier, seconds

_FORGET_ENDED_AFTER_NS = seconds(60)
_MOST_EARLY_ENDS = 4096
_MOST_MOVING = 4096


class Ledger:
    """Programs, turns and tools as the events tell them."""

    def __init__(self, state: LedgerState | None = None, *, cold_return_ratio: float = 0.5) -> None:
        self.state = state = state or LedgerState()
        self.totals = Totals.of(state)
        self.pool = whole(state.pools)
        self.programs = state.programs
        self.estimates = state.estimates
        self.cold_return_ratio = cold_return_ratio
        self.queue = state.queue
        self.active: dict[str, None] = {}
        self.dormant: dict[str, None] = {}  # programs that neither hold a slot nor ask for one
        self.askers = state.askers
        self.changed = state.changed
        self.resync = state.resync
        self.lateness = Lateness()  # of no snapshot: our own clock may be another one in the next life
        self._children: dict[str, dict[str, None]] = {}  # by root, for roots that have any
        self._held_of: dict[str, dict[str, None]] = {}  # turn_ids by root
        self._ended: deque[tuple[int, str]] = deque()
        self._index()

    def _index(self) -> None:
        """Rebuild what is derived from the records of a loaded snapshot."""
        ended: list[tuple[int, str]] = []
        for program in self.programs.values():
            name = program.program_id
            if program.status is Status.ACTIVE:
                self.active[name] = None
            elif program.status is Status.ENDED:
                ended.append((program.last_seen_ns, name))
            elif name not in self.queue:
                self.dormant[name] = None
            if program.parent_id:
                self._children.setdefault(program.root_id, {})[name] = None
        self._ended.extend(sorted(ended))
        for turn_id, held in self.state.held.items():
            self._held_of.setdefault(self.programs[held.program_id].root_id, {})[turn_id] = None

    # What the controller reads

    @property
    def demand_blocks(self) -> int:
        """D: blocks that the active programs need resident, a shared prefix counted once."""
        return self.totals.demand_blocks + (self.shared_blocks if self.totals.charged else 0)

    @property
    def shared_blocks(self) -> int:
        """The prefix that programs share, in blocks."""
        return self.estimates.blocks(self.estimates.shared_tokens.value)

    @property
    def is_crowded(self) -> bool:
        """Whether tools have to share the host's CPUs; False while it is not known."""
        host, totals = self.state.host, self.totals
        return host is not None and totals.tools_active + totals.tools_waiting >= host.cpus

    def queued(self, left: Callable[[Program], float] | None = None) -> list[QueuedProgram]:
        """The root programs that wait for a slot, in the order in which they began to.

        ``left`` tells what each is expected to hold until its end, if anybody asks.
        """
        programs = (self.programs[name] for name in self.queue)
        return [QueuedProgram.of(program, left(program) if left else 0.0) for program in programs]

    def children_of(self, root_id: str) -> Iterable[str]:
        """The names of the root's children, and of theirs."""
        return self._children.get(root_id, ())

    def waiting_family(self, root_id: str) -> list[str]:
        """The root, and its children that have held turns."""
        held = self.state.held
        waiting = {root_id: None} | {held[key].program_id: None for key in self._held_of.get(root_id, ())}
        return list(waiting)

    def take_changed(self, most: int) -> list[Program]:
        """The first ``most`` of the programs that began to act, or to wait for a child, and were not taken yet."""
        names = list(islice(self.changed, most))
        for name in names:
            del self.changed[name]
        return [self.programs[name] for name in names if name in self.programs]

    # What moves it

    def apply(self, event: ev.Event, now_ns: int) -> bool:
        """Take an event in; False for a duplicate. Raises ``RemoteEventError`` if it contradicts what is known."""
        if event.sequence > 0 and not is_new(self, event, now_ns):
            return False
        self.state.counts.applied += 1
        self.lateness.note(event.publisher, event.at_ns, now_ns)
        HANDLERS[type(event)](self, event, now_ns)
        return True

    def forget_publisher(self, publisher: str, now_ns: int) -> None:
        """The publisher is gone, and with it what only it held."""
        drop_publisher(self, publisher, now_ns)
        wanted = self.state.environments
        for name in [name for name, environment in wanted.items() if environment.publisher == publisher]:
            del wanted[name]
        self.state.sequences.pop(publisher, None)
        self.state.retractions.pop(publisher, None)
        self.state.parts.pop(publisher, None)
        self.resync.pop(publisher, None)

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
            self.totals.count(program, 1)
            self.active[name] = None
            self.state.active_changes += 1
            program.idle_since_ns = 0 if program.open_turns or program.open_tools else now_ns
        elif before is Status.ACTIVE:
            self.totals.count(program, -1)
            del self.active[name]
            self.state.active_changes += 1
            self.state.unasked.pop(name, None)
            program.retained_until_ns = 0
        if after is Status.PAUSED and is_root:
            self._pause_children(name, now_ns)
        if after is Status.ENDED:
            self._close(program, now_ns)
        self._requeue(program)

    def _pause_children(self, root_id: str, now_ns: int) -> None:
        """Who rides a slot loses it with the root."""
        for name in self.children_of(root_id):
            if self.programs[name].status is Status.ACTIVE:
                self.move(self.programs[name], Trigger.PAUSE, now_ns)

    def grant(self, program: Program, now_ns: int) -> None:
        """The program's held turns are let go; a root takes a slot, a child rides its root's."""
        if program.status is Status.ENDED:
            return
        held, blocks = self.state.held, program.kv_blocks
        for turn_id in list(self._held_of.get(program.root_id, ())):
            if held[turn_id].program_id == program.program_id:
                blocks = max(blocks, held[turn_id].blocks)
                self.let_go(turn_id, now_ns)
        # Until the engine reports the turn, the estimate stands for it: the next tick may come before.
        self.charge(program, blocks)
        self.move(program, Trigger.ADMIT, now_ns)
        self.state.unasked.pop(program.program_id, None)
        self.note_idle(program, now_ns)

    def end(self, program: Program, now_ns: int, reason: str) -> None:
        """The run is over, and its children's with it; the gate and the engine will be told."""
        if program.status is not Status.ENDED:
            program.ended_at_ns = now_ns
            if program.turn_index and not program.quarantined:
                self._learn_from(program)
        if program.status is Status.ACTIVE:
            pinned = program.retained_until_ns > now_ns
            self.state.farewells[program.program_id] = Farewell(reason=reason, pinned=pinned)
        if not program.parent_id:
            for name in self.children_of(program.program_id):
                self.end(self.programs[name], now_ns, f"its root ended: {reason}")
        self.move(program, Trigger.END, now_ns)

    def _learn_from(self, program: Program) -> None:
        program.learned_turns = program.turn_index
        self.estimates.turns.add(program.turn_index)
        self.estimates.lives.ended(
            program.kind,
            program.turn_index,
            expected_tokens=program.expected_tokens,
            actual_tokens=program.peak_tokens,
        )

    def forget_ended(self, now_ns: int) -> None:
        """Drop programs that ended a while ago, and ends that waited too long for their beginning."""
        horizon_ns = now_ns - _FORGET_ENDED_AFTER_NS
        while self._ended and self._ended[0][0] <= horizon_ns:
            _, name = self._ended.popleft()
            program = self.programs.get(name)
            if program is None or program.status is not Status.ENDED:
                continue
            if program.open_turns or program.open_tools or name in self._children:
                self._ended.append((now_ns, name))  # an end is still to come: a turn's, a late tool's, a child's
            else:
                self._forget(program)
        early = self.state.early_ends
        for key in [key for key, seen_ns in early.items() if seen_ns <= horizon_ns]:
            del early[key]

    def _forget(self, program: Program) -> None:
        del self.programs[program.program_id]
        if program.parent_id:
            siblings = self._children[program.root_id]
            del siblings[program.program_id]
            if not siblings:
                del self._children[program.root_id]

    # Primitives for the handlers

    def program(self, name: str, now_ns: int, *, parent_id: str = "", tenant: str = "") -> Program:
        """The record of that name, made if need be."""
        program = self.programs.get(name)
        if program is None:
            root_id = name
            if parent_id and parent_id != name:
                root = self.root_of(self.program(parent_id, now_ns), now_ns)
                if not are_strangers(tenant, root.tenant):
                    root_id = root.program_id
                    self._children.setdefault(root_id, {})[name] = None
            program = self.programs[name] = Program(
                program_id=name,
                tenant=tenant,
                parent_id=parent_id if root_id != name else "",
                root_id=root_id,
                arrived_at_ns=now_ns,
            )
            self.dormant[name] = None
        elif parent_id and not program.parent_id and parent_id != name:
            adopt(self, program, parent_id, tenant or program.tenant, now_ns)
        program.last_seen_ns = now_ns
        return program

    def delegate(self, parent: Program) -> None:
        """A child's run begins: the tools that run wait for it, neither load the host nor tell what they take."""
        for call in self.state.tools.values():
            if call.program_id == parent.program_id and call.started and not call.delegates:
                self.count_tool(call, -1)
                call.delegates = True
                parent.delegating += 1
                self.changed[parent.program_id] = None
        self.lend(parent, parent.delegating > 0)  # it comes back when its child has ended

    def root_of(self, program: Program, now_ns: int) -> Program:
        """The program that holds the slot: it outlives its own record's forgetting while children come."""
        return program if not program.parent_id else self.program(program.root_id, now_ns)

    def charge(self, program: Program, blocks: int) -> None:
        """Set what the program's context takes."""
        shared = min(self.shared_blocks, blocks)
        if program.status is Status.ACTIVE:
            self.totals.charge(program, blocks - shared - program.kv_blocks + program.shared_blocks)
        program.kv_blocks, program.shared_blocks = blocks, shared

    def lend(self, program: Program, lends: bool = False) -> None:
        """Whether others may have the room of the program, which is likely to be away for long."""
        if lends is not program.lends and program.status is Status.ACTIVE:
            self.totals.count(program, -1)
            program.lends = lends
            self.totals.count(program, 1)

    def settle(self, program: Program, replica: str) -> None:
        """The program runs on ``replica`` from now on; one that is active is charged there."""
        charged = program.status is Status.ACTIVE
        self.totals.count(program, -charged)
        program.replica = replica
        self.totals.count(program, charged)

    def hear_pools(self) -> None:
        """A sample came, or an engine went: sum up anew what all engines have, and what each is charged with."""
        self.pool = whole(self.state.pools)
        if self.totals.several != (len(self.state.pools) > 1):
            self.totals = Totals.of(self.state)

    def resize_blocks(self, block_tokens: int) -> None:
        """Blocks hold ``block_tokens`` from now on: turns may have been queued before the engine said so."""
        ratio = self.estimates.block_tokens / block_tokens
        self.estimates.block_tokens = block_tokens
        for program in self.programs.values():
            program.kv_blocks = ceil(program.kv_blocks * ratio)
            program.shared_blocks = min(program.kv_blocks, ceil(program.shared_blocks * ratio))
            program.queued_blocks = 0
        for held in self.state.held.values():
            held.blocks = max(1, ceil(held.blocks * ratio))
            self.programs[self.programs[held.program_id].root_id].queued_blocks += held.blocks
        for turn in self.state.running.values():
            turn.blocks = ceil(turn.blocks * ratio)
        self.totals = Totals.of(self.state)

    def hold(self, turn_id: str, held: Held, root: Program, now_ns: int) -> None:
        """A turn begins to wait at the gate."""
        self.state.held[turn_id] = held
        self._held_of.setdefault(root.program_id, {})[turn_id] = None
        if not root.queued_at_ns and root.status is not Status.ACTIVE:  # who left and asks again keeps its place
            root.queued_at_ns = now_ns
        self.queue_more(root, 1, held.blocks)

    def let_go(self, turn_id: str, now_ns: int) -> None:
        """A turn waits no longer, whether it was granted, ran unasked, or left."""
        held = self.state.held.pop(turn_id, None)
        if held is None:
            return
        program = self.programs[held.program_id]
        self.note_idle(program, now_ns)
        root = self.programs[program.root_id]
        turns = self._held_of[root.program_id]
        del turns[turn_id]
        if not turns:
            del self._held_of[root.program_id]
        self.queue_more(root, -1, -held.blocks)

    def drop_tool(self, key: str, now_ns: int) -> None:
        """A tool call is over."""
        call = self.state.tools.pop(key, None)
        if call is None:
            return
        self.state.tool_queue.pop(key, None)
        self.count_tool(call, -1)
        program = self.programs[call.program_id]
        program.open_tools -= 1
        program.delegating -= call.delegates
        self.note_idle(program, now_ns)

    def queue_tool(self, key: str) -> None:
        """The call waits for a slot of the host. One that has a slot and asks again was not told: it is next."""
        call, queue = self.state.tools[key], self.state.tool_queue
        if not call.may_start:
            queue[key] = None
            return
        self.count_tool(call, -1)
        call.may_start = False
        self.count_tool(call, 1)
        self.state.tool_queue = {key: None, **queue}

    def let_tool_start(self, key: str) -> None:
        """The call has a slot from now on; it starts as soon as it hears of that."""
        self.state.tool_queue.pop(key, None)
        call = self.state.tools.get(key)
        if call is not None and not call.has_slot:
            self.count_tool(call, -1)
            call.may_start = True
            self.count_tool(call, 1)

    def count_tool(self, call: ToolCall, by: int) -> None:
        """Add ``by`` calls of this call's kind to the sums."""
        if not call.has_slot:
            self.totals.tools_waiting += by
        elif not call.delegates:
            self.totals.tools_active += by

    def note_idle(self, program: Program, now_ns: int) -> None:
        """The program's gap begins if nothing of it is open."""
        if not program.open_turns and not program.open_tools:
            program.idle_since_ns = now_ns

    def expect_move(self, command_id: int, tier: Tier) -> None:
        """A command that moves KV was sent; where it is now is known once the engine has answered."""
        moving = self.state.moving
        moving[command_id] = tier
        if len(moving) > _MOST_MOVING:
            del moving[next(iter(moving))]

    def ended_early(self, key: str, publisher: str, now_ns: int, what: str) -> None:
        """An end without a beginning: late delivery where the publisher has gaps, else its fault."""
        sequence = self.state.sequences.get(publisher)
        if sequence is not None and not sequence.missing:
            raise RemoteEventError(f"{publisher}: {what} {key!r} ended and never began")
        self.state.counts.late += 1
        early = self.state.early_ends
        early[key] = now_ns
        if len(early) > _MOST_EARLY_ENDS:
            del early[next(iter(early))]

    def queue_more(self, root: Program, turns: int, blocks: int) -> None:
        """So many held turns more wait for the root's slot."""
        root.queued_turns += turns
        root.queued_blocks += blocks
        if root.program_id in self.queue:
            self.totals.queued_blocks += blocks
        self._requeue(root)

    def _requeue(self, program: Program) -> None:
        """Put a root into the queue, or take it out, as its state says."""
        name = program.program_id
        belongs = program.status is Status.WAITING and program.queued_turns > 0 and not program.parent_id
        if belongs and name not in self.queue:
            self.queue[name] = None
            self.totals.queued_blocks += program.queued_blocks
        elif not belongs and name in self.queue:
            del self.queue[name]
            self.totals.queued_blocks -= program.queued_blocks
        if program.status is Status.ACTIVE and program.queued_turns:
            self.askers[name] = None
        if not belongs and program.status in (Status.WAITING, Status.PAUSED):
            self.dormant[name] = None
        else:
            self.dormant.pop(name, None)

    def _close(self, program: Program, now_ns: int) -> None:
        """Nothing of an ended program waits or acts any more; its open turns end by themselves."""
        name = program.program_id
        held = self.state.held
        for turn_id in list(self._held_of.get(program.root_id, ())):
            if held[turn_id].program_id == name:
                self.let_go(turn_id, now_ns)
        if program.open_tools:
            for key in [key for key, call in self.state.tools.items() if call.program_id == name]:
                self.drop_tool(key, now_ns)
        program.kv_tier = Tier.NONE
        self._ended.append((now_ns, name))
