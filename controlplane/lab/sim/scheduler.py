"""Which calls run: admission into the batch, block accounting, retraction. It knows nothing of step times."""

from controlplane.core.model.errors import LocalEventError
from controlplane.core.policies.priority.attained_service import ServiceWindow
from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.decode_batch import DecodeBatch
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.kv_pool import KvPool
from controlplane.lab.sim.prefix_cache import never, owner, put_bounded
from controlplane.lab.sim.reserve import OutputReserve
from controlplane.lab.sim.waiting import WaitingQueue


class Scheduler:
    """Calls by where they stand: ``waiting``, ``partial`` (prefilled in part), ``running`` (decoding)."""

    def __init__(
        self,
        profile: Profile,
        pool: KvPool,
        engine: EngineShape,
        *,
        max_running: int,
        priority: PriorityPolicy,
    ) -> None:
        self.pool = pool
        pool.level = self._level
        self.waiting = WaitingQueue(
            priority, engine, self._served_tokens, pool.cache.is_pinned, self._cached_blocks
        )
        self.batch: DecodeBatch[Progress] = DecodeBatch(profile, engine.block_tokens)
        self.turns: dict[str, Progress] = {}
        self.running: dict[str, Progress] = {}
        self.partial: Progress | None = None
        self.full = False  # nothing more can be scheduled until a turn ends or memory is given up
        self._shrunk = False  # a turn has ended since the last decode step began
        self.fresh: list[Progress] = []  # prefilled with the last step, where its results are known late
        self.retractions = 0
        self.recomputed_tokens = 0
        self._cache = pool.cache
        self._engine = engine
        self._block_tokens = engine.block_tokens
        self._chunk_tokens = engine.chunk_tokens
        self._priority = priority
        self._served = ServiceWindow(priority.window_ns)
        self._parked: dict[str, int] = {}  # an ordered set
        pool.parked = self._parked
        self._now_ns = 0
        self._max_running = max_running
        self._reserve = OutputReserve(self.batch)

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens``."""
        return -(-tokens // self._block_tokens)

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.partial is not None or len(self.waiting))

    # -- the waiting queue ------------------------------------------------------------------------------------

    def enqueue(self, turn: Progress) -> None:
        """Put a call into the waiting queue, new or retracted."""
        call = turn.call
        self.waiting.add(
            QueuedCall(
                turn_id=call.turn_id,
                program_id=call.program_id,
                queued_at_ns=turn.queued_ns,
                footprint_blocks=self.blocks(call.prompt_tokens + call.output_tokens),
                program_arrived_at_ns=call.arrived_at_ns,
                retracted=turn.retracted,
                label=self.pool.labels.get(call.program_id, ""),
            )
        )

    def use(self, priority: PriorityPolicy) -> None:
        """Order by another policy from now on; what was served so far is not counted."""
        self._priority = priority
        self._served = ServiceWindow(priority.window_ns)
        self.waiting.use(priority)
        self.full = False

    def label(self, program_id: str, label: str) -> None:
        """The program's typed label; an empty one takes it back."""
        if self.pool.labels.pop(program_id, "") == label == "":
            return
        if label:
            put_bounded(self.pool.labels, program_id, label)
        for call in self.waiting.of_program(program_id):
            self.waiting.remove(call.turn_id)
            self.enqueue(self.turns[call.turn_id])

    def park(self, program_id: str, parked: bool) -> None:
        """Nobody waits for the program's next call, or somebody does again."""
        if parked:
            put_bounded(self._parked, program_id, 1)
        else:
            self._parked.pop(program_id, None)

    def _served_tokens(self, program_id: str, now_ns: int) -> int:
        return self._served.tokens(program_id, now_ns)

    def _cached_blocks(self, turn_id: str) -> int:
        return sum(self.turns[turn_id].cached_blocks(self._cache, self._block_tokens))

    def _level(self, key: str, blocks: int) -> int:
        """Of a program's context, or of what its running turn holds."""
        return self._priority.level(blocks, self._served.tokens(owner(key), self._now_ns), self._engine)

    def expire_pins(self, now_ns: int) -> bool:
        """Unpin what has expired. Returns whether anything had."""
        outlasts = self.waiting.has_program if self.pool.pins_outlast_waits else never
        return self._cache.expire_pins(now_ns, outlasts)

    # -- prefill ----------------------------------------------------------------------------------------------

    def plan_prefill(self, now_ns: int) -> list[tuple[Progress, int]]:
        """The next prefill step: calls and how many tokens of each; their blocks are taken. Empty: none.

        A call that is prefilled in part goes first; then waiting calls in order, until one does not fit.
        """
        self._now_ns = now_ns
        plan: list[tuple[Progress, int]] = []
        budget_tokens = self._chunk_tokens
        if self.full and self.running:
            return plan
        reserved_tokens = 0
        if self.partial is not None:
            turn = self.partial
            squeezed = turn.squeezed and self.running
            limit_tokens = min(budget_tokens, self._room_tokens(0)) if squeezed else budget_tokens
            tokens = self._extend(turn, limit_tokens, now_ns, force=not self.running) if limit_tokens else 0
            if tokens == 0 and not self.pool.shrinks:
                self.full = True
                return plan
            if tokens:
                plan.append((turn, tokens))
            if turn.kv_tokens + tokens == turn.goal_tokens:
                self.partial = None
            elif not self.pool.shrinks:
                return plan
            budget_tokens -= tokens
            reserved_tokens = self._reserve.of_candidate(turn)
        if len(self.waiting):
            self._plan_waiting(plan, budget_tokens, reserved_tokens, now_ns)
        if self.partial is not None and not plan:
            self.full = True
        return plan

    def _plan_waiting(
        self, plan: list[tuple[Progress, int]], budget_tokens: int, reserved_tokens: int, now_ns: int
    ) -> None:
        started: list[str] = []
        for turn_id in self.waiting.order(now_ns):
            turn = self.turns[turn_id]
            first = not self.running and not plan
            if budget_tokens < self._block_tokens:
                break
            missing = self._missing_blocks(turn, reserved_tokens)
            part_tokens = self._part_tokens(turn, missing, budget_tokens, reserved_tokens)
            if not part_tokens and self.pool.unpin(missing, stuck=first):  # as in the plugin: a smaller chunk first
                missing = self._missing_blocks(turn, reserved_tokens)
                part_tokens = self._part_tokens(turn, missing, budget_tokens, reserved_tokens)
            squeezed = missing > 0 and (part_tokens > 0 or not first)
            if squeezed:
                budget_tokens = part_tokens
            if len(self.running) + len(plan) >= self._max_running or budget_tokens < self._block_tokens:
                self.full = True
                break
            self._start(turn, now_ns)
            turn.squeezed = squeezed
            tokens = self._extend(turn, budget_tokens, now_ns, force=first)
            unfinished = turn.kv_tokens + tokens < turn.goal_tokens
            if tokens == 0 or (unfinished and self.partial is not None):  # one unfinished prefill at a time
                self._undo_start(turn, now_ns)
                self.full = True
                break
            started.append(turn_id)
            plan.append((turn, tokens))
            if unfinished:
                self.partial = turn
                break
            budget_tokens -= tokens
            reserved_tokens += self._reserve.of_candidate(turn)
        for turn_id in started:
            self.waiting.remove(turn_id)

    def _missing_blocks(self, turn: Progress, reserved_tokens: int) -> int:
        """What conservative admission lacks: for the rest of the call and a share of all output to come."""
        prefix_blocks, context_blocks = turn.cached_blocks(self._cache, self._block_tokens)
        needed = self.blocks(turn.goal_tokens + self._reserve.of_candidate(turn))
        needed -= prefix_blocks + context_blocks
        available = self.pool.available_blocks
        node = self._cache.find(turn.call.cache_key)
        if node is not None and node.refs == 0:
            available -= context_blocks
            if node.pinned_until_ns:
                available += node.blocks
        if prefix_blocks and (prefix := self._cache.find_prefix(turn.call.prefix_group)) and prefix.refs == 0:
            available -= prefix.blocks
        return max(0, needed + self.blocks(reserved_tokens + self._reserve.of_running()) - available)

    def _part_tokens(self, turn: Progress, missing_blocks: int, budget_tokens: int, reserved_tokens: int) -> int:
        """With how much a call that does not fit may begin; 0 for none, and for all of it, which does not fit."""
        if missing_blocks <= 0 or self.partial is not None:
            return 0
        prefix_blocks, context_blocks = turn.cached_blocks(self._cache, self._block_tokens)
        if self.pool.lies_below(turn, context_blocks, turn.reusable_blocks(self._block_tokens)):
            return 0  # as in the plugin: a context is loaded as a whole, which is more than a part
        cached_tokens = (prefix_blocks + context_blocks) * self._block_tokens
        tokens = min(budget_tokens, self._room_tokens(reserved_tokens))
        return tokens if self._block_tokens <= tokens < turn.goal_tokens - cached_tokens else 0

    def _room_tokens(self, reserved_tokens: int) -> int:
        """What a chunk of a call that does not fit may take, while every running call can still end."""
        if not self.pool.shrinks:
            return 0
        to_come = self.blocks(reserved_tokens + self.batch.remaining_tokens) + len(self.running)
        blocks = self.pool.spare_blocks() - to_come
        return blocks * self._block_tokens if blocks >= self._engine.floor_blocks else 0

    def _start(self, turn: Progress, now_ns: int) -> None:
        prefix_blocks, context_blocks = turn.cached_blocks(self._cache, self._block_tokens)
        base = 0 if turn.skips_cache else turn.prefix_blocks
        call = turn.call
        turn.node = None
        if not turn.skips_cache:
            turn.node = self._cache.acquire(call.cache_key, call.prefix_group, base, context_blocks)
        if turn.node is None:
            base = prefix_blocks = context_blocks = 0
        else:
            turn.node.arrived_ns = call.arrived_at_ns
        turn.prefix_missing_blocks = base - prefix_blocks
        turn.context_blocks = context_blocks
        turn.shared_blocks = prefix_blocks + context_blocks
        turn.own_blocks = turn.loaded_blocks = turn.load_ps = 0
        turn.kv_tokens = turn.shared_blocks * self._block_tokens
        if self._cache.below is not None and not turn.prefix_missing_blocks:
            self.pool.reload(turn, turn.reusable_blocks(self._block_tokens), self._block_tokens, now_ns)
        turn.started_ns = now_ns
        if turn.scheduled_ns < 0:
            turn.scheduled_ns = now_ns
            turn.cached_tokens = turn.kv_tokens
            turn.loaded_tokens = turn.loaded_blocks * self._block_tokens

    def _undo_start(self, turn: Progress, now_ns: int) -> None:
        self._let_go(turn, keep_tokens=0, now_ns=now_ns)
        turn.started_ns = -1
        if not turn.retracted:
            turn.scheduled_ns = -1

    def _extend(self, turn: Progress, budget_tokens: int, now_ns: int, *, force: bool) -> int:
        """Take blocks for a call's next chunk. Returns its tokens; 0: there is no room."""
        tokens = turn.goal_tokens - turn.kv_tokens
        if tokens > budget_tokens:
            tokens = budget_tokens // self._block_tokens * self._block_tokens
        held, wanted = turn.shared_blocks + turn.own_blocks, tokens
        needed = self.blocks(turn.kv_tokens + tokens) - held
        granted = self.pool.take_chunk(needed, now_ns) if needed > 0 else 0
        if granted < needed:
            tokens = (held + granted) * self._block_tokens - turn.kv_tokens
            if tokens <= 0 and force:
                self.pool.give(granted)
                if not self.pool.force_free(needed):
                    # Blocks of a longer shared prefix are in the way: give up the tree's, and begin again.
                    self._let_go(turn, keep_tokens=0, now_ns=now_ns)
                    turn.skips_cache = True
                    self._start(turn, now_ns)
                    return self._extend(turn, budget_tokens, now_ns, force=True)
                granted = self.pool.take_chunk(needed, now_ns)
                tokens = min(wanted, (held + granted) * self._block_tokens - turn.kv_tokens)
        turn.own_blocks += granted
        return tokens

    def prefilled(self, turn: Progress, tokens: int) -> bool:
        """A chunk of a call is done. Returns whether its prompt is complete: then it has one more token."""
        turn.kv_tokens += tokens
        turn.pieces.append(turn.kv_tokens)
        self._served.add(turn.call.program_id, tokens, self._now_ns)
        if turn.kv_tokens < turn.goal_tokens:
            return False
        if turn.retracted:
            again_tokens = turn.goal_tokens - turn.shared_blocks * self._block_tokens
            self.recomputed_tokens += again_tokens
            turn.recomputed_tokens += again_tokens
        elif (lost_tokens := turn.call.reusable_tokens - turn.cached_tokens) > 0:
            self.recomputed_tokens += lost_tokens
        node, missing = turn.node, turn.prefix_missing_blocks
        if node is not None and node.parent is not None and missing:
            # The tree keeps one copy of a shared prefix; another call may have been first.
            added = max(0, turn.prefix_blocks - node.parent.blocks)
            node.parent.blocks += added
            self.pool.give(missing - added)
            turn.own_blocks -= missing
            turn.shared_blocks += missing
            turn.prefix_missing_blocks = 0
        turn.produced_tokens += 1
        return True

    # -- decode -----------------------------------------------------------------------------------------------

    def decode(self, turn: Progress) -> None:
        """A prefilled call joins the decode batch."""
        turn.decoding = self.batch.join(turn.kv_tokens, turn.produced_tokens, turn.call.output_tokens, turn)
        self.running[turn.call.turn_id] = turn
        if self.batch.late_steps:
            self.fresh.append(turn)

    def ensure_next_step(self, now_ns: int) -> None:
        """Reclaim pins, then retract calls until the next decode step has its blocks.

        SGLang notes that the batch has shrunk when it prepares a decode step: room is looked for only after it.
        """
        if self._shrunk:
            self.full = self._shrunk = False
        while self.running and ((short := self.batch.growth_blocks(0, 1) - self.pool.available_blocks) > 0):
            while self.pool.unpin(short, stuck=True) and short > 0:
                short = self.batch.growth_blocks(0, 1) - self.pool.available_blocks
            if self.batch.growth_blocks(0, 1) > self.pool.available_blocks:
                self._retract(now_ns)

    def take_growth(self, first: int, end: int, now_ns: int) -> None:
        """Take the blocks of decode steps ``first`` to ``end``, counted from the next one."""
        blocks = self.batch.growth_blocks(first, end)
        if blocks:
            self._now_ns = now_ns
            self.pool.take_growth(blocks, now_ns)

    def leave_batch(self, turn: Progress, now_ns: int) -> None:
        """A decoding call stops: finished, aborted or retracted."""
        entry = turn.decoding
        if entry is None:
            raise LocalEventError(f"call {turn.call.turn_id} is not decoding")
        if not entry.left:
            self.batch.leave(entry)
        turn.own_blocks = self.blocks(self.batch.kv_tokens(entry)) - turn.shared_blocks
        turn.produced_tokens = self.batch.produced_tokens(entry)
        turn.kv_tokens = entry.kv_tokens + turn.produced_tokens - entry.produced_tokens
        self._served.add(turn.call.program_id, turn.kv_tokens - entry.kv_tokens, now_ns)
        turn.decoding = None
        del self.running[turn.call.turn_id]

    def _rank(self, turn: Progress) -> tuple[int, int, int]:
        """The highest is retracted first: the newest, or where the policy says so that of the lowest priority."""
        if not self.pool.retracts_by_level:
            return 0, 0, turn.serial
        held = turn.shared_blocks + turn.own_blocks
        if turn.decoding is not None:
            held = self.blocks(self.batch.kv_tokens(turn.decoding))
        return self._level(turn.call.program_id, held), held, turn.serial

    def _retract(self, now_ns: int) -> None:
        self._now_ns = now_ns
        turns = list(self.running.values())
        if self.partial is not None:
            turns.append(self.partial)
        turn = max(turns, key=self._rank)
        turn.skips_cache = len(turns) == 1
        self._reserve.on_retract([turn.call.output_tokens for turn in self.running.values()])
        if turn is self.partial:
            self.partial = None
            self._let_go(turn, keep_tokens=0, now_ns=now_ns)
        else:
            self.leave_batch(turn, now_ns)
            turn.produced_tokens -= self.batch.late_steps  # what its last step did is lost
            self._let_go(turn, keep_tokens=turn.call.prompt_tokens, now_ns=now_ns)
        turn.service_ns += now_ns - turn.started_ns
        turn.started_ns = -1
        turn.retracted = True
        self.retractions += 1
        self.full = False
        self.enqueue(turn)

    # -- ends -------------------------------------------------------------------------------------------------

    def finish(self, turn: Progress, now_ns: int) -> None:
        """A call that runs no more gives its blocks to the cache."""
        del self.turns[turn.call.turn_id]
        if turn is self.partial:
            self.partial = None
        if turn.started_ns >= 0:
            turn.service_ns += now_ns - turn.started_ns
            self._let_go(turn, keep_tokens=turn.kv_tokens, now_ns=now_ns)
            self._shrunk = True
        if not self.running:
            self._reserve.reset()

    def _let_go(self, turn: Progress, *, keep_tokens: int, now_ns: int) -> None:
        """Leave the first ``keep_tokens`` in the cache and free the rest."""
        node, own_blocks = turn.node, turn.own_blocks
        if node is not None:
            added = keep_tokens // self._block_tokens - turn.shared_blocks
            if added > 0 and not turn.prefix_missing_blocks and node.blocks == turn.context_blocks:
                self._cache.extend(node, added, turn.piece_ends(self._block_tokens))
                own_blocks -= added
            self._cache.release(node, now_ns)
        self.pool.give(own_blocks)
        turn.node = None
        turn.own_blocks = turn.shared_blocks = turn.kv_tokens = 0
