"""An engine with continuous batching, in virtual time.

It schedules as SGLang does: prefill first (a step is a prefill batch of up to ``chunk_tokens`` where anything can
be scheduled, else one decode step of everything that runs), conservative admission into the batch, a prefix
cache, and retraction when decoding runs out of blocks. Decode steps between two events are computed at once, as
a jump; the result is exactly that of computing them one by one, whatever the order of the queue. One thing differs
where a memory policy chooses victims by level and size (``Opportunistic.aligned``): all blocks that a jump needs
are taken from victims chosen once, by levels at one time, and not anew for each step.
"""

from collections.abc import Sequence

from controlplane.core.model.commands import Command, Demote, Discard, Label, Prefetch, Release, Retain
from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.events import ContextMoved, Event, PinReclaimed, PoolSampled
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.protocols import EngineShape, MemoryPolicy, PriorityPolicy
from controlplane.lab.sim import turn_events
from controlplane.lab.sim.call import Call, ContextTooLong, Progress
from controlplane.lab.sim.hardware import BLOCK_TOKENS, CHUNK_TOKENS, MAX_RUNNING, PS, Profile, require_steps
from controlplane.lab.sim.kv_pool import KvPool
from controlplane.lab.sim.lower_tiers import TierSpec, build_tiers
from controlplane.lab.sim.prefix_cache import owner, put_bounded
from controlplane.lab.sim.scheduler import Scheduler
from controlplane.lab.sim.space_time import SpaceTime
from controlplane.lab.sim.steps import decode_steps, prefill_ps
from controlplane.lab.sim.turn_events import Publisher

__all__ = ["Call", "ContextTooLong", "EngineModel"]


class EngineModel:
    """Calls in, events out. Time is the caller's; an earlier ``now_ns`` than the last counts as the last.

    The caller advances the model at ``next_wake_ns`` and may change it at any time between.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        pool_blocks: int,
        block_tokens: int = BLOCK_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
        max_running: int = MAX_RUNNING,
        max_context_tokens: int | None = None,
        memory: MemoryPolicy | None = None,
        priority: PriorityPolicy | None = None,
        publisher: Publisher | None = None,
        max_jump_steps: int = 1 << 40,
        tiers: Sequence[TierSpec] = (),
    ) -> None:
        """Events carry ``publisher``'s name and next sequence number, if one is given.

        ``max_jump_steps`` bounds how many decode steps are computed at once; results do not depend on it but for
        what the module says of eviction. ``tiers`` lie below the device, the fastest first.
        """
        require("pool_blocks", pool_blocks, low=1, high=float("inf"))
        require_steps(block_tokens=block_tokens, chunk_tokens=chunk_tokens, max_running=max_running)
        self.block_tokens = block_tokens
        self.max_context_tokens = min(pool_blocks * block_tokens, max_context_tokens or profile.max_context_tokens)
        self.turn_overhead_ns = profile.turn_overhead_ns  # of a turn that is on its way here: the caller's to wait
        self._profile = profile
        self._max_jump_steps = max_jump_steps
        shape = EngineShape(pool_blocks=pool_blocks, block_tokens=block_tokens, chunk_tokens=chunk_tokens)
        self._pool = KvPool(shape, memory if memory is not None else Lru())
        self.cache = self._pool.cache
        if tiers:
            self.cache.below = build_tiers(tiers, profile, block_tokens, self._pool.host_rank)
        self._scheduler = Scheduler(
            profile,
            self._pool,
            shape,
            max_running=max_running,
            priority=priority if priority is not None else Fcfs(),
        )
        self._batch = self._scheduler.batch
        self._publisher = publisher if publisher is not None else Publisher("")
        self._events: list[Event] = []
        self._serial = 0
        self._now_ns = 0
        self._advanced_ns = -1
        self._busy = False
        self._start_ps = 0  # of the step in progress; of the next one when not busy
        self._end_ps = 0
        self._prefilling: list[tuple[Progress, int]] = []  # the prefill step in progress: tokens of each
        self._jump_steps = 0  # of the decode jump in progress; 0 in a prefill step
        self._taken_steps = 0  # of the jump, whose blocks are taken
        self._aborting: list[Progress] = []
        self.space_time = SpaceTime()

    # -- commands ---------------------------------------------------------------------------------------------

    def submit(self, call: Call, now_ns: int) -> None:
        """Queue a call.

        Raises ``ContextTooLong``, and ``ConfigError`` for sizes below 1 or the id of an open call.
        """
        if call.prompt_tokens < 1 or call.output_tokens < 1:
            require("prompt_tokens", call.prompt_tokens, low=1, high=float("inf"))
            require("output_tokens", call.output_tokens, low=1, high=float("inf"))
        scheduler = self._scheduler
        if call.turn_id in scheduler.turns:
            raise ConfigError(f"turn_id: {call.turn_id!r} is open already", field="turn_id")
        if call.prompt_tokens + call.output_tokens > self.max_context_tokens:
            raise ContextTooLong(call.prompt_tokens, call.output_tokens, self.max_context_tokens)
        now_ns = self._catch_up(now_ns)
        self._serial += 1
        if call.context:
            put_bounded(self.cache.latest, call.program_id, call.context)
        turn = Progress(call, self._serial, now_ns, call.prefix_blocks(self.block_tokens))
        if scheduler.waiting.overtakes:
            scheduler.full = False  # it may be one that fits
        can_wait = scheduler.full and len(scheduler.waiting)
        scheduler.turns[call.turn_id] = turn
        scheduler.enqueue(turn)
        projected_blocks = scheduler.blocks(call.prompt_tokens + call.output_tokens)
        self._events.append(turn_events.submitted(self._publisher, turn, projected_blocks, now_ns))
        if not can_wait:
            self._changed(now_ns)

    def abort(self, turn_id: str, now_ns: int) -> bool:
        """End a call early: at once where it waits, else with the step in progress. False: no such call."""
        now_ns = self._catch_up(now_ns)
        turn = self._scheduler.turns.get(turn_id)
        if turn is None or turn.aborted:
            return False
        turn.aborted = True
        if self._scheduler.waiting.remove(turn_id) is not None:
            self._end(turn, now_ns)
        else:
            self._aborting.append(turn)
        self._changed(now_ns)
        return True

    def obey(self, command: Command, now_ns: int) -> str:
        """Carry out what concerns the engine alone. Returns why that cannot be done, or nothing."""
        match command:
            case Retain():
                return self.retain(command.program_id, now_ns + command.ttl_ns, now_ns)
            case Release():
                self.release(command.program_id, now_ns)
            case Demote() if self.cache.below is None:
                self.release(command.program_id, now_ns)
                return "there is no memory below the device, unpinned only: give the engine a tier"
            case Demote():
                if not self.demote(command.program_id, now_ns):
                    return "a turn of it runs, or nothing of it is here"
            case Prefetch():
                return self.fetch(command.program_id, now_ns)
            case Discard():
                self.discard(command.program_id, now_ns)
            case Label():
                self.label(command.program_id, command.label, now_ns)
            case _:
                return f"the engine model does not support {type(command).__name__}"
        return ""

    def retain(self, program_id: str, until_ns: int, now_ns: int) -> str:
        """Pin a program's idle context until a time; the reason if that cannot be done."""
        now_ns = self._catch_up(now_ns)
        if until_ns <= now_ns:
            return "its time is over"
        budget_blocks = int(self._pool.pin_budget_ratio * self.cache.total_blocks)
        problem = self.cache.pin(program_id, until_ns, budget_blocks)
        self._changed(now_ns)
        return problem

    def release(self, program_id: str, now_ns: int | None = None) -> bool:
        """Unpin. False: it was not pinned."""
        now_ns = self._catch_up(now_ns)
        if not self.cache.unpin(program_id):
            return False
        self._more_room(now_ns)
        return True

    def discard(self, program_id: str, now_ns: int | None = None, keep_tokens: int = 0) -> int:
        """Free a program's idle context, pinned or not, behind its first tokens. Returns the blocks freed."""
        now_ns = self._catch_up(now_ns)
        freed_blocks = self.cache.cut(program_id, keep_tokens // self.block_tokens)
        if freed_blocks:
            self._more_room(now_ns)
        return freed_blocks

    def flush(self, now_ns: int) -> None:
        """Forget all that is cached and not in use, as with new weights."""
        now_ns = self._catch_up(now_ns)
        self.cache.flush()
        self._more_room(now_ns)

    def demote(self, program_id: str, now_ns: int | None = None) -> bool:
        """Move a program's idle context, pinned or not, below the device. False: nothing of it could be moved."""
        now_ns = self._catch_up(now_ns)
        if self.cache.evict(program_id, self.cache.total_blocks):
            self._more_room(now_ns)
        below, key = self.cache.below, self.cache.latest.get(program_id, program_id)
        if below is None:
            return False
        below.news.pop(key, None)  # the answer tells
        return below.holds(key) and self.cache.find(key) is None

    def fetch(self, program_id: str, now_ns: int | None = None) -> str:
        """Load a program's idle context from below the device before it is needed; why that cannot be done."""
        now_ns = self._catch_up(now_ns)
        problem = self._pool.fetch(program_id, now_ns)
        if not problem:
            self._more_room(now_ns)
        return problem

    def label(self, program_id: str, label: str, now_ns: int | None = None) -> None:
        """Set a program's typed label, by which policies evict and order; an empty one takes it back."""
        self._catch_up(now_ns)
        self._scheduler.label(program_id, label)

    def adopt(self, call: Call, blocks: int, now_ns: int) -> int:
        """Cache ``blocks`` of the call's context that another engine sent, as room permits. Returns those taken."""
        now_ns = self._catch_up(now_ns)
        base_blocks = call.prefix_blocks(self.block_tokens)
        taken = self._pool.adopt(call.program_id, call.prefix_group, base_blocks, blocks, now_ns)
        self._more_room(now_ns)
        return taken

    def use(self, policies: EnginePolicies, now_ns: int | None = None) -> None:
        """Run other policies from now on."""
        now_ns = self._catch_up(now_ns)
        self._pool.use(policies.memory)
        self._scheduler.use(policies.priority)
        self._changed(now_ns)

    def park(self, program_id: str, parked: bool = True, now_ns: int | None = None) -> None:
        """Nobody waits for the program's next call: it ended or was paused. Or somebody does again."""
        self._catch_up(now_ns)
        self._scheduler.park(program_id, parked)

    # -- what can be asked ------------------------------------------------------------------------------------

    def produced_tokens(self, turn_id: str) -> int:
        """Output tokens of an open call at the last ``advance``; 0 for an unknown one."""
        turn = self._scheduler.turns.get(turn_id)
        if turn is None or turn.decoding is None:
            return 0 if turn is None else turn.produced_tokens
        steps = self._completed_steps(self._now_ns) if self._jump_steps else 0
        return min(self._batch.produced_tokens(turn.decoding) + steps, turn.call.output_tokens)

    def pool_sample(self, now_ns: int) -> PoolSampled:
        """The allocator's state."""
        now_ns = self._catch_up(now_ns)
        scheduler = self._scheduler
        if scheduler.expire_pins(now_ns):  # else a pin would end with whichever step begins next
            self._more_room(now_ns)
        return turn_events.pool_sampled(
            self._publisher, scheduler, self.block_tokens, self.max_context_tokens, now_ns
        )

    @property
    def redone(self) -> tuple[int, int]:
        """How many times a call was retracted, and tokens prefilled that had been computed before."""
        return self._scheduler.retractions, self._scheduler.recomputed_tokens

    def open_calls(self) -> list[tuple[Call, int]]:
        """Calls that have not ended, and the blocks each is projected to need."""
        blocks = self._scheduler.blocks
        return [
            (turn.call, blocks(turn.call.prompt_tokens + turn.call.output_tokens))
            for turn in self._scheduler.turns.values()
        ]

    # -- time -------------------------------------------------------------------------------------------------

    def next_wake_ns(self) -> int | None:
        """When to call ``advance`` next; None: not before the next ``submit``."""
        if self._busy:
            return -(-self._end_ps // PS)
        return -(-self._start_ps // PS) if self._scheduler.has_work() else None

    def advance(self, now_ns: int) -> list[Event]:
        """Run up to and including ``now_ns``. Returns the events since the last call, in order of time."""
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        self._run(now_ns * PS, start_at_now=True)
        self._advanced_ns = now_ns
        self._report_moves(now_ns)
        events, self._events = self._events, []
        return events

    def _report_moves(self, now_ns: int) -> None:
        """Pins that were given up; what left the device whole, or lost copies below, with what is left there."""
        reclaimed, self._pool.reclaimed = self._pool.reclaimed, []
        self._events += [PinReclaimed(**self._publisher.stamp(now_ns), program_id=name) for name in reclaimed]
        below = self.cache.below
        if below is None or not below.news:
            return
        moved, below.news = below.news, {}
        for key in moved:
            name = owner(key)
            if self.cache.find(key) is None and self.cache.latest.get(name, key) == key:
                blocks, _ = below.find(key, 0, self.cache.total_blocks)
                stamp, tokens = self._publisher.stamp(now_ns), blocks * self.block_tokens
                self._events.append(ContextMoved(**stamp, program_id=name, below_tokens=tokens))

    def drain(self) -> list[Event]:
        """The events since the last ``advance``, without running on: those of commands just given."""
        events, self._events = self._events, []
        return events

    def _run(self, now_ps: int, *, start_at_now: bool) -> None:
        while True:
            if self._busy:
                if self._end_ps > now_ps:
                    return
                self._busy = False
                self._hold(self._end_ps)
                self._start_ps, start_ps = self._end_ps, self._start_ps
                if self._jump_steps:
                    self._finish_jump(start_ps // PS)
                else:
                    self._finish_prefill()
                if self._aborting:
                    self._finish_aborts()
            else:
                if self._start_ps > now_ps or (self._start_ps == now_ps and not start_at_now):
                    return
                if not self._scheduler.has_work():
                    return
                self._start_step()

    def _catch_up(self, now_ns: int | None) -> int:
        """Bring the state to ``now_ns``, but begin no step then: the caller is about to change something.

        Blocks are taken when a step begins, so a jump takes those of the steps that have begun.
        """
        self._now_ns = now_ns = self._now_ns if now_ns is None else max(now_ns, self._now_ns)
        self._run(now_ns * PS, start_at_now=False)
        self._hold(now_ns * PS)
        if self._busy and self._jump_steps:
            begun = self._begun_steps(now_ns)
            if begun > self._taken_steps:
                self._scheduler.take_growth(self._taken_steps, begun, self._start_ps // PS)
                self._taken_steps = begun
        return now_ns

    def _hold(self, until_ps: int) -> None:
        """Note what the pool was used for until now; what it is used for is about to change."""
        prefilling = [turn for turn, _ in self._prefilling]
        partial = self._scheduler.partial
        if partial is not None and partial not in prefilling:
            prefilling.append(partial)
        self.space_time.hold(self.cache, prefilling, until_ps)

    def _changed(self, now_ns: int) -> None:
        """Something changed at ``now_ns``: decide again at the next boundary of a step."""
        if not self._busy:
            self._start_ps = max(self._start_ps, now_ns * PS)
        elif self._jump_steps:
            self._jump_steps = self._begun_steps(now_ns)
            self._end_ps = self._start_ps + self._batch.duration_ps(self._jump_steps)

    def _more_room(self, now_ns: int) -> None:
        self._scheduler.full = False
        self._changed(now_ns)

    def _completed_steps(self, now_ns: int) -> int:
        """Steps of the jump in progress that are complete."""
        return min(self._batch.steps_within(now_ns * PS - self._start_ps), self._jump_steps)

    def _begun_steps(self, now_ns: int) -> int:
        """Steps of the jump in progress that have begun; one may begin at ``now_ns`` only if advanced to it."""
        completed = self._completed_steps(now_ns)
        begins_now = self._start_ps + self._batch.duration_ps(completed) == now_ns * PS
        if completed and begins_now and self._advanced_ns < now_ns:
            return completed
        return min(completed + 1, self._jump_steps)

    # -- steps ------------------------------------------------------------------------------------------------

    def _start_step(self) -> None:
        now_ns = self._start_ps // PS
        self._hold(self._start_ps)
        if self._scheduler.expire_pins(now_ns):
            self._scheduler.full = False
        plan = self._scheduler.plan_prefill(now_ns)
        if not plan:
            self._scheduler.ensure_next_step(now_ns)
            if not self._scheduler.running:
                plan = self._scheduler.plan_prefill(now_ns)
        self._busy = True
        if plan:
            self._prefilling = plan
            self._jump_steps = 0
            self._end_ps = self._start_ps + prefill_ps(self._profile, plan, self._pool)
        else:
            self._jump_steps = decode_steps(self._scheduler, self._pool, self._start_ps, self._max_jump_steps)
            self._taken_steps = 0
            self._end_ps = self._start_ps + self._batch.duration_ps(self._jump_steps)

    def _finish_jump(self, started_ns: int) -> None:
        steps = self._jump_steps
        if steps > self._taken_steps:
            self._scheduler.take_growth(self._taken_steps, steps, started_ns)
        self._jump_steps = 0
        self._settle(self._batch.advance(steps), -(-self._start_ps // PS))

    def _finish_prefill(self) -> None:
        plan, self._prefilling = self._prefilling, []
        now_ns = -(-self._start_ps // PS)
        late = self._profile.results_late
        self._settle(self._batch.settle(), now_ns)
        for turn, tokens in plan:
            if not self._scheduler.prefilled(turn, tokens):
                continue
            if not late:
                self._first_token(turn, now_ns)
            if late or turn.remaining_tokens:
                self._scheduler.decode(turn)
            else:
                self._end(turn, now_ns)

    def _settle(self, finished: Sequence[Progress], now_ns: int) -> None:
        """What is known at the end of a step: late first tokens, and who has finished."""
        fresh, self._scheduler.fresh = self._scheduler.fresh, []
        for turn in fresh:
            if turn.decoding is not None:  # else it was retracted or aborted
                self._first_token(turn, now_ns)
        for turn in finished:
            self._scheduler.leave_batch(turn, now_ns)
            self._end(turn, now_ns)

    def _first_token(self, turn: Progress, now_ns: int) -> None:
        if turn.first_token_ns < 0:
            turn.first_token_ns = now_ns
            self._events.append(turn_events.first_token(self._publisher, turn, now_ns))

    def _finish_aborts(self) -> None:
        aborting, self._aborting = self._aborting, []
        now_ns = -(-self._start_ps // PS)
        for turn in aborting:
            if turn.call.turn_id not in self._scheduler.turns:
                continue
            if turn.decoding is not None:
                self._scheduler.leave_batch(turn, now_ns)
            else:
                self._scheduler.waiting.remove(turn.call.turn_id)
            self._end(turn, now_ns)

    def _end(self, turn: Progress, now_ns: int) -> None:
        """The call is over: finished, or aborted."""
        self._scheduler.finish(turn, now_ns)
        self._events.append(turn_events.ended(self._publisher, turn, now_ns))
