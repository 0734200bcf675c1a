"""Turns on their way through gate and engine, and what the gaps between them tell.

A turn is known by its ``turn_id`` from the gate to the engine's end. Events may be late or lost: a beginning that
is known already, or whose end came first, changes nothing.
"""

from dataclasses import dataclass, field
from math import ceil

from controlplane.core.estimators import idleness
from controlplane.core.estimators.prompt_size import SIZE_FIELDS, PromptSize, PromptTokens, Sender, sender_of
from controlplane.core.ledger.engine_turns import EngineLoad, EngineTurn
from controlplane.core.ledger.gates import Gates, HeldTurn
from controlplane.core.ledger.groups import Groups
from controlplane.core.ledger.handoffs import Handoffs
from controlplane.core.ledger.index import Index
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs, note_idle
from controlplane.core.ledger.publishers import Publishers
from controlplane.core.ledger.runs import Runs
from controlplane.core.model import events as ev
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.places import place_of
from controlplane.core.model.types import Program, Status, Tier, seconds

_MOST_PROMPTS = 3  # of a program, before its last: it may alternate between a few contexts
_UNMEASURED = ("size",)  # what is guessed of a prompt that nobody measured
_MOST_SIZES = 8192  # of turns that were held and have not been submitted
_MOST_REPLIES = 1024  # of turns that have not ended
_LEAST_PREFILL_TOKENS = 64  # below that a prefill measures the step's overhead, not its length
_EARLIER_NS = -seconds(1)  # a gate's clock beside ours: it says at once when a turn is asked for
_LONGEST_CYCLE_NS = seconds(86_400)  # what is longer tells of a clock that was set, or of a daemon that was away
_LATE_NS = seconds(5)  # publishers send their events in batches, and each on a connection of its own


@dataclass(slots=True, kw_only=True)
class Signals:
    """What one control interval saw of thrashing."""

    retractions: int = 0
    cold_returns: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Turns:
    """What engines run, by ``turn_id``."""

    publishers: Publishers
    programs: Programs
    gates: Gates
    groups: Groups
    runs: Runs
    handoffs: Handoffs
    running: dict[str, EngineTurn] = persisted(dict)
    replies: dict[str, ev.ReplyRead] = persisted(dict)  # by turn_id, of turns that have not ended yet
    signals: Signals = persisted(Signals)
    engine_idle_since_ns: int = persisted(int)  # 0 while a turn runs
    block_tokens: dict[str, int] = persisted(dict)  # by place, of engines whose blocks are not of the ledger's size
    sizes: dict[str, PromptSize] = field(default_factory=dict)  # of prompts, by turn, until it is submitted
    most_blocks: int = 0  # of the largest engine's pool; 0: none was told of
    cold_return_ratio: float = 0.5  # a turn that finds less of its program's last prompt than that is a cold return
    group_opened: bool = False  # siblings that wait may begin: for the controller, which takes it
    load: EngineLoad = field(default_factory=EngineLoad)  # counted where there are several engines
    by_publisher: Index = field(default_factory=Index)  # the ids of running turns
    running_blocks: int = field(init=False)  # that all running turns are projected to need

    def __post_init__(self) -> None:
        self.running_blocks = sum(turn.blocks for turn in self.running.values())
        for turn_id, turn in self.running.items():
            self.by_publisher.add(turn.publisher, turn_id)

    # Events

    def queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        programs = self.programs
        program = self.runs.get_or_create_child(
            event.program_id, now_ns, parent_id=event.parent_id, tenant=event.tenant
        )
        if self._is_late(program, event, now_ns, _EARLIER_NS) or event.turn_id == program.last_turn_id:
            self.publishers.counts.late += 1  # what was told on other connections has overtaken it
            return
        if not program.turn_index:  # what is known when it comes; the gate reads it from each request
            program.tenant, program.agent = program.tenant or event.tenant, program.agent or event.agent
        root = programs.root_of(program, now_ns)
        if not self._is_paid_for(program, root, event):
            return
        self.groups.join(program, event, now_ns)
        if root is not program and not event.parent_id:
            self.runs.untold[program.program_id] = None  # this gate has not heard of it, or has forgotten it
        programs.gated = True
        programs.move(program, Trigger.QUEUE, now_ns)
        if root is not program:
            programs.move(root, Trigger.QUEUE, now_ns)
        known = self.gates.held.get(event.turn_id)
        if known is not None or event.turn_id in self.running:
            is_own = known is not None and known.program_id == program.program_id
            if known is not None and is_own and known.guessed == _UNMEASURED:  # a state told of it, without a size
                held = self._held(program, event)
                programs.queue_more(root, 0, held.blocks - known.blocks)
                known.blocks, known.guessed = held.blocks, held.guessed
            return  # asked again while held: it keeps its place
        self._close_gap(program, now_ns)  # from here on it is us who are waited for
        program.called_nothing = False
        idleness.held(program, now_ns)
        program.gate = place_of(event.publisher)
        if (tracker := self.publishers.sequences.get(event.publisher)) is not None:
            tracker.is_gate = True
        self.gates.hold(event.turn_id, self._held(program, event), root, now_ns)
        if event.timeout_ns and root is program and not program.turn_index:
            self.gates.newcomers[program.program_id] = event.timeout_ns

    def submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        turn_id, programs = event.turn_id, self.programs
        if turn_id in self.running:
            return  # requeued after a retraction
        self.gates.let_go(turn_id, now_ns)
        if self.publishers.early_ends.pop(turn_id, None) is not None:
            return
        program = programs.get_or_create(event.program_id, now_ns)
        late = self._is_late(program, event, now_ns, _LATE_NS)
        if program.status is not Status.ACTIVE and not late:
            self._note_ungranted(program, now_ns)
        blocks = self._in_our_blocks(event.projected_blocks, event.publisher)
        size = self.sizes.pop(turn_id, None)
        if size is None and event.prompt_bytes:
            size = PromptSize(prompt_bytes=event.prompt_bytes, agent=program.agent)
        turn = EngineTurn(program_id=event.program_id, publisher=event.publisher, blocks=blocks, size=size)
        self.running[turn_id] = turn
        self.by_publisher.add(turn.publisher, turn_id)
        self.running_blocks += turn.blocks
        if programs.charges.several:
            self.load.count(turn, 1)
        if program.replica != (place := place_of(event.publisher)):
            programs.settle(program, place)
        self.engine_idle_since_ns = 0
        self._close_gap(program, now_ns)
        if not program.open_turns:
            idleness.reasons(program, now_ns)
        program.open_turns += 1
        program.turn_over_ns = now_ns - self.publishers.lateness.of(event.publisher, event.at_ns, now_ns)
        program.retained_until_ns = 0  # the running turn holds the context by itself
        program.called_nothing = False
        programs.charge(program, blocks, now_ns)
        if programs.accounts.on:
            programs.accounts.turn(programs.whose(program), now_ns)

    def first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        program = self.programs.by_name.get(event.program_id)
        if program is None:
            self.publishers.counts.late += 1  # it ended, and was forgotten
            return
        estimates = self.programs.estimates
        computed_tokens = event.prompt_tokens - event.cached_tokens
        if event.prefill_ns > 0 and computed_tokens >= _LEAST_PREFILL_TOKENS and not event.loaded_tokens:
            estimates.prefill.add(computed_tokens, event.cached_tokens, event.prefill_ns)
        if event.prefill_ns > 0 and (turn := self.running.get(event.turn_id)) is not None:
            turn.prefilled = estimates.prefilled(event, alone=len(self.running) == 1)
        opens = self.groups.begins(program, place_of(event.publisher), event.prompt_tokens, now_ns)
        self.group_opened = self.group_opened or opens
        if event.prompt_tokens <= 0:
            return
        estimates.hits.add(event.cached_tokens / event.prompt_tokens)
        if program.turn_index == 0:
            # A sub-agent, or a rollout, shares more with its siblings than all programs share.
            if opens or not (program.parent_id or program.sent_by or program.group):
                estimates.shared_tokens.add(event.cached_tokens)
            return
        if program.emptied:
            program.emptied = False
            return  # it was not for want of room that its context was gone
        if event.prompt_tokens < program.prompt_tokens:
            return  # the agent rewrote its history: what was cached is not what it asks for
        self._came_back(program, event)
        warm_tokens = self.cold_return_ratio * program.prompt_tokens
        if event.cached_tokens - event.loaded_tokens < warm_tokens:  # what is loaded back has waited for room, too
            estimates.eviction_delay.add(event.launch_delay_ns)
        if event.cached_tokens < warm_tokens and program.warm:
            self.signals.cold_returns += 1

    def prefilled(self, event: ev.TurnPrefilled, now_ns: int) -> None:
        """It runs until it is decoded, at home still: but no publisher there holds it any more."""
        turn = self.running.get(event.turn_id)
        if turn is not None:
            self.by_publisher.drop(turn.publisher, event.turn_id)
            turn.publisher = f"{place_of(turn.publisher)}/"
            self.by_publisher.add(turn.publisher, event.turn_id)
        self.handoffs.prefill_ended(event, now_ns, runs=turn is not None)

    def ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        programs, estimates = self.programs, self.programs.estimates
        program = programs.by_name.get(event.program_id)
        turn = self.running.get(event.turn_id)
        if turn is None:
            self.gates.let_go(event.turn_id, now_ns)  # it ran, or it never will
            self.publishers.ended_early(event.turn_id, event.publisher, now_ns, "turn")
            if program is not None and not program.open_turns:
                program.gap_has_tool, program.gap_since_ns = False, now_ns  # its beginning, a gap's end, is lost
        elif turn.program_id != event.program_id:
            raise RemoteEventError(
                f"{event.publisher}: turn {event.turn_id!r} is {turn.program_id!r}'s, not {event.program_id!r}'s"
            )
        else:
            self.left(event.turn_id, now_ns)
        read = self.replies.pop(event.turn_id, None)
        if program is None:
            return
        if not event.ok:
            self.groups.leaves(program)
            if turn is not None and not program.open_turns:
                program.gap_unanswered = True
                idleness.unanswered(program)
            if read is not None and read.is_last:
                self._answered(program, read, now_ns)
            return
        program.last_seen_ns, program.emptied = now_ns, False
        self.groups.begins(program, place_of(event.publisher), event.prompt_tokens, now_ns)  # a token told of late
        if turn is not None and turn.size is not None and not (program.quarantined or event.estimated):
            known_tokens = _prompt_of(program, turn.size.continues)
            estimates.prompts.learn(turn.size, self._sender(program), event.prompt_tokens, known_tokens)
        if program.prompt_tokens:
            program.prompts = (*program.prompts[1 - _MOST_PROMPTS :], (program.last_turn_id, program.prompt_tokens))
        program.turn_index, program.last_turn_id = program.turn_index + 1, event.turn_id
        program.turn_over_ns = now_ns - self.publishers.lateness.of(event.publisher, event.at_ns, now_ns)
        program.prompt_tokens = event.prompt_tokens
        program.context_tokens = event.prompt_tokens + event.output_tokens
        grown_tokens = max(0, program.context_tokens - program.peak_tokens)
        if program.first_tokens and not program.quarantined:
            estimates.lives.grew(program.class_key, grown_tokens)
        elif not program.quarantined and event.prompt_tokens:
            program.first_tokens = event.prompt_tokens
            estimates.lives.began(program.class_key, event.prompt_tokens)
        program.peak_tokens += grown_tokens
        program.service_ns += event.service_ns
        program.kv_tier = Tier.HBM
        program.warm = program.status is Status.ACTIVE
        programs.charge(program, estimates.blocks(program.context_tokens), now_ns)
        if not program.quarantined:
            estimates.turn_ended(program.context_tokens, event.output_tokens, event.service_ns)
            if turn is not None and (prefilled := turn.prefilled) is not None:
                estimates.sharing.add(prefilled, event, alone=not self.running)
        if not program.open_turns and program.status is Status.ACTIVE:
            programs.changed[program.program_id] = None
        if programs.accounts.on:
            programs.accounts.turn_ended(programs.whose(program))
        if read is None:
            self._asks_for(program, event.tool, event.tool_calls, now_ns)
        else:
            self._answered(program, read, now_ns)

    def reply_read(self, event: ev.ReplyRead, now_ns: int) -> None:
        program, replies = self.programs.by_name.get(event.program_id), self.replies
        if program is None or program.last_turn_id != event.turn_id:
            replies[event.turn_id] = event  # its end is on the way, unless nobody tells of turns
            if len(replies) > _MOST_REPLIES:
                del replies[next(iter(replies))]
        if event.turn_id in self.running:
            return
        if program is None or program.status is Status.ENDED:
            self.publishers.counts.late += 1
            return
        if program.queued_turns or program.open_turns:
            # It goes on; unless its gate no longer holds that turn, of which it has yet to tell, or the engine is
            # gone that ran it, and took its last words along.
            program.called_nothing = event.tool_calls == 0
            self.publishers.counts.late += 1
            return
        self._answered(program, event, now_ns)

    def has_blocks_of(self, place: str, tokens: int) -> None:
        if tokens == self.programs.estimates.block_tokens:
            self.block_tokens.pop(place, None)
        else:
            self.block_tokens[place] = tokens

    # Parts of those

    def _in_our_blocks(self, blocks: int, publisher: str) -> int:
        own = self.block_tokens.get(place_of(publisher))
        return blocks if own is None else ceil(blocks * own / self.programs.estimates.block_tokens)

    def _is_late(self, program: Program, event: ev.Event, now_ns: int, least_ns: int) -> bool:
        """What is told of a program's last turns may come behind its goodbye, which it does not take back.

        By much, where its publisher was cut off meanwhile. ``least_ns``: what is said later than that after the
        goodbye is of a new turn.
        """
        if not program.ended_by_word:
            return False
        reported_ns = now_ns - self.publishers.lateness.of(event.publisher, event.at_ns, now_ns)
        return reported_ns - program.ended_at_ns < least_ns

    def _is_paid_for(self, program: Program, root: Program, event: ev.TurnQueued) -> bool:
        """Whose it is and what its client allows it, from its first turns; False for one whose run was stopped."""
        programs = self.programs
        is_anew = program.status is Status.ENDED and root is program  # whoever had the name before has ended
        if event.account != program.account and (is_anew or not program.account):
            programs.set_account(program, event.account)
        if event.budget_turns or event.budget_kv_token_s:
            programs.count_runs()
        if root is program:  # what a child says of budgets its root has not said
            root.budget_turns = root.budget_turns or event.budget_turns
            root.budget_kv_token_s = root.budget_kv_token_s or event.budget_kv_token_s
        if root.program_id not in programs.accounts.stopped:
            return True
        programs.accounts.unanswered[program.program_id] = None
        return False

    def _held(self, program: Program, event: ev.TurnQueued) -> HeldTurn:
        """EstimateBlocks (MARS Algorithm 1, line 3): from the prefill's length, plus a usual output.

        The output is what its client says, if it does. Where nothing of the prompt could be measured it is the last
        context or, of a first one, what its class usually begins with. Nothing is larger than the pool.
        """
        estimates = self.programs.estimates
        size = PromptSize(**{name: getattr(event, name) for name in SIZE_FIELDS})
        if size.is_measured:
            known_tokens = _prompt_of(program, size.continues)
            prompt = estimates.prompts.estimate(size, self._sender(program), known_tokens)
        else:
            usual = program.context_tokens or estimates.lives.first_tokens(program.tenant, event.agent)
            prompt = PromptTokens(usual, _UNMEASURED)
        if size.is_measured:  # granted, it is held no more when it is submitted
            self.sizes[event.turn_id] = size
            if len(self.sizes) > _MOST_SIZES:
                del self.sizes[next(iter(self.sizes))]
        blocks = max(1, estimates.blocks(prompt.tokens + (program.hints.output_tokens or estimates.output.value)))
        if self.most_blocks:
            blocks = min(blocks, self.most_blocks)
        return HeldTurn(
            program_id=event.program_id, publisher=event.publisher, blocks=blocks, guessed=prompt.guessed
        )

    def _sender(self, program: Program) -> Sender:
        return sender_of(program.program_id, self.programs.whose(program).account)

    def _note_ungranted(self, program: Program, now_ns: int) -> None:
        programs = self.programs
        root = programs.root_of(program, now_ns)
        if root.status is not Status.ACTIVE:
            self.publishers.counts.admitted_unasked += 1
            programs.move(root, Trigger.SUBMIT, now_ns)
            programs.unasked[root.program_id] = None
            programs.gated = False
        programs.move(program, Trigger.SUBMIT, now_ns)

    def _close_gap(self, program: Program, now_ns: int) -> None:
        """The program's next turn has come: what it did meanwhile took so long, whoever told of it.

        **Paper**: Continuum §5.1.
        """
        self.runs.leaving.pop(program.program_id, None)
        is_learned = not (program.gap_unanswered or program.quarantined)
        if program.gap_since_ns and program.turn_index and is_learned:
            estimates = self.programs.estimates
            estimates.lives.observe_survival(program.class_key, program.turn_index)
            gap_ns = now_ns - program.gap_since_ns
            cycle_ns = gap_ns + program.last_turn_ns
            if not program.gap_delegates and cycle_ns <= _LONGEST_CYCLE_NS:
                estimates.gaps.add(program.gap_tool, gap_ns)
                estimates.lives.cycled(program.class_key, cycle_ns)
        program.idle_since_ns = program.gap_since_ns = 0
        program.gap_has_tool = program.gap_delegates = program.gap_unanswered = False
        program.gap_tool, program.back_at_ns = "", 0
        program.keep_ratio, program.weighed_at_ns = -1.0, 0
        self.programs.lend(program, now_ns=now_ns)

    def _came_back(self, program: Program, event: ev.FirstToken) -> None:
        """Learn what it cost to have back what had left the device of the program's context."""
        prefill, loaded_tokens = self.programs.estimates.prefill, event.loaded_tokens
        lost_tokens = max(0, min(program.context_tokens, event.prompt_tokens) - event.cached_tokens)
        if lost_tokens + loaded_tokens < _LEAST_PREFILL_TOKENS:
            return
        load_ns = computing_ns = 0
        if loaded_tokens:
            expected_ns = prefill.part_ns(event.prompt_tokens - event.cached_tokens, event.cached_tokens)
            load_ns = max(0, event.prefill_ns - expected_ns)
            computing_ns = prefill.part_ns(loaded_tokens, event.cached_tokens - loaded_tokens)
        self.programs.estimates.displaced.add(lost_tokens, loaded_tokens, load_ns, computing_ns)

    def _answered(self, program: Program, reply: ev.ReplyRead, now_ns: int) -> None:
        """The turn has ended, and so has its reply."""
        self._asks_for(program, reply.tool, reply.tool_calls, now_ns)
        if reply.is_last and program.may_end and not program.queued_turns:
            program.frees = program.ended_by_word = True
            self.runs.end(program, now_ns, "its client said that this turn was the last")

    def _asks_for(self, program: Program, tool: str, tool_calls: int, now_ns: int) -> None:
        """What the reply of the turn that ended calls; -1 calls: nobody looked."""
        program.called_nothing = tool_calls == 0
        if tool or tool_calls > 0:  # requests aside, such as one for a title, call none
            self.runs.tools.over_by(program, program.gap_since_ns - program.last_turn_ns, now_ns)
        if tool and not program.gap_has_tool:  # else the tool itself was reported, by the name that its times go by
            program.tool = program.gap_tool = tool
            self.programs.changed[program.program_id] = None

    def left(self, turn_id: str, now_ns: int) -> None:
        turn = self.running.pop(turn_id)
        self.by_publisher.drop(turn.publisher, turn_id)
        self.running_blocks -= turn.blocks
        if self.programs.charges.several:
            self.load.count(turn, -1)
        program = self.programs.by_name[turn.program_id]
        program.open_turns -= 1
        if not program.open_turns:
            program.last_turn_ns = now_ns - program.phase_since_ns
            idleness.acts(program, now_ns)
            program.gap_since_ns = now_ns
            if program.open_tools:  # the tool was told first, by another publisher: now the program acts
                self.programs.changed[program.program_id] = None
        if not self.running:
            self.engine_idle_since_ns = now_ns
        note_idle(program, now_ns)

    def recount(self) -> None:
        self.running_blocks = sum(turn.blocks for turn in self.running.values())
        self.load = EngineLoad.of(self.running.values() if self.programs.charges.several else ())


def _prompt_of(program: Program, turn_id: str) -> int:
    """The tokens of one of the program's latest prompts, by its turn; 0 if it is not known any more."""
    if not turn_id:
        return 0
    if turn_id == program.last_turn_id:
        return program.prompt_tokens
    return next((tokens for name, tokens in program.prompts if name == turn_id), 0)
