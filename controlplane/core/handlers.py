"""What each kind of event does to the ledger: one function a kind, one table.

A turn is known by its ``turn_id`` from the gate to the engine's end, a tool call by its program and ``call_id``.
Events may be late or lost: a beginning that is known already, or whose end came first, changes nothing.
"""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from controlplane.core import events as ev
from controlplane.core import idleness
from controlplane.core.errors import RemoteEventError
from controlplane.core.events import place_of, serves
from controlplane.core.lifecycle import Trigger
from controlplane.core.records import Held, Running, tool_key
from controlplane.core.state_parts import joined
from controlplane.core.tool_handlers import environment_wanted, tool_ended, tool_enqueued, tool_started
from controlplane.core.types import Program, Status, Tier, seconds

if TYPE_CHECKING:
    from controlplane.core.ledger import Ledger

_MOST_REPLIES = 1024  # of turns that have not ended
_LEAST_PREFILL_TOKENS = 64  # below that a prefill measures the step's overhead, not its length
_EARLIER_NS = -seconds(1)  # a gate's clock beside ours: it says at once when a turn is asked for
_LATE_NS = seconds(5)  # publishers send their events in batches, and each on a connection of its own


# Programs and turns that the gate holds


def program_arrived(ledger: "Ledger", event: ev.ProgramArrived, now_ns: int) -> None:
    program = ledger.program(event.program_id, now_ns, parent_id=event.parent_id, tenant=event.tenant)
    if not program.parent_id or serves(event.publisher):
        return  # what a gate or an engine knows of children, gates know
    ledger.state.untold[program.program_id] = None
    parent = ledger.programs.get(program.parent_id)
    if parent is not None and parent.open_tools and not event.aside:
        ledger.delegate(parent)


def program_ended(ledger: "Ledger", event: ev.ProgramEnded, now_ns: int) -> None:
    program = ledger.program(event.program_id, now_ns)  # a gate may yet tell of a grant that we forgot
    ledger.end(program, now_ns, event.reason or "its run ended")
    for name in (program.program_id, *ledger.children_of(program.program_id)):
        ledger.programs[name].ended_by_word = True  # its children have ended with it


def turn_queued(ledger: "Ledger", event: ev.TurnQueued, now_ns: int) -> None:
    program = ledger.program(event.program_id, now_ns, parent_id=event.parent_id, tenant=event.tenant)
    if _is_late(ledger, program, event, now_ns, _EARLIER_NS) or event.turn_id == program.last_turn_id:
        ledger.state.counts.late += 1  # what was told on other connections has overtaken it
        return
    if not program.turn_index:  # what is known when it comes; the gate reads it from each request
        program.tenant, program.agent = program.tenant or event.tenant, program.agent or event.agent
    root = ledger.root_of(program, now_ns)
    if root is not program and not event.parent_id:
        ledger.state.untold[program.program_id] = None  # this gate has not heard of it, or has forgotten it
    ledger.state.gated = True
    ledger.move(program, Trigger.QUEUE, now_ns)
    if root is not program:
        ledger.move(root, Trigger.QUEUE, now_ns)
    if event.turn_id in ledger.state.held or event.turn_id in ledger.state.running:
        return  # asked again while held: it keeps its place
    _close_gap(ledger, program, now_ns)  # from here on it is us who are waited for
    program.called_nothing = False
    idleness.held(program, now_ns)
    blocks = _estimate_blocks(ledger, program, event)
    held = Held(program_id=event.program_id, publisher=event.publisher, blocks=blocks)
    ledger.hold(event.turn_id, held, root, now_ns)


def _estimate_blocks(ledger: "Ledger", program: Program, event: ev.TurnQueued) -> int:
    """EstimateBlocks (MARS Algorithm 1, line 3): from the prefill's length, plus a usual output."""
    estimates = ledger.estimates
    tokens: float = event.prompt_tokens or estimates.prompt_tokens(
        context_tokens=program.context_tokens,
        known_bytes=program.prompt_bytes,
        prompt_bytes=event.prompt_bytes,
    )
    return max(1, estimates.blocks(tokens + estimates.output.value))


def turn_abandoned(ledger: "Ledger", event: ev.TurnAbandoned, now_ns: int) -> None:
    ledger.let_go(event.turn_id, now_ns)


# Turns in the engine


def turn_submitted(ledger: "Ledger", event: ev.TurnSubmitted, now_ns: int) -> None:
    turn_id, state = event.turn_id, ledger.state
    if turn_id in state.running:
        return  # requeued after a retraction
    ledger.let_go(turn_id, now_ns)
    if state.early_ends.pop(turn_id, None) is not None:
        return
    program = ledger.program(event.program_id, now_ns)
    late = _is_late(ledger, program, event, now_ns, _LATE_NS)
    if program.status is not Status.ACTIVE and not late:
        _admitted_unasked(ledger, program, now_ns)
    turn = Running(program_id=event.program_id, publisher=event.publisher, blocks=event.projected_blocks)
    state.running[turn_id] = turn
    if ledger.totals.several:
        ledger.totals.count_turn(turn, 1)
    if program.replica != (place := place_of(event.publisher)):
        ledger.settle(program, place)
    state.engine_idle_since_ns = 0
    _close_gap(ledger, program, now_ns)
    if not program.open_turns:
        idleness.reasons(program, now_ns)
    program.open_turns += 1
    program.turned_ns = now_ns - ledger.lateness.of(event.publisher, event.at_ns, now_ns)
    program.retained_until_ns = 0  # the running turn holds the context by itself
    program.called_nothing = False
    if event.prompt_bytes > 0:
        program.prompt_bytes = event.prompt_bytes
        if event.prompt_tokens > 0:
            ledger.estimates.tokens_per_byte.add(event.prompt_tokens / event.prompt_bytes)
    ledger.charge(program, event.projected_blocks)


def _is_late(ledger: "Ledger", program: Program, event: ev.Event, now_ns: int, least_ns: int) -> bool:
    """What is told of a program's last turns may come behind its goodbye, which it does not take back.

    By much, where its publisher was cut off meanwhile. ``least_ns``: what is said later than that after the
    goodbye is of a new turn.
    """
    if not program.ended_by_word:
        return False
    said_ns = now_ns - ledger.lateness.of(event.publisher, event.at_ns, now_ns)
    return said_ns - program.ended_at_ns < least_ns


def _admitted_unasked(ledger: "Ledger", program: Program, now_ns: int) -> None:
    root = ledger.root_of(program, now_ns)
    if root.status is not Status.ACTIVE:
        ledger.state.counts.admitted_unasked += 1
        ledger.move(root, Trigger.SUBMIT, now_ns)
        ledger.state.unasked[root.program_id] = None
        ledger.state.gated = False
    ledger.move(program, Trigger.SUBMIT, now_ns)


def _close_gap(ledger: "Ledger", program: Program, now_ns: int) -> None:
    """The program's next turn has come: what it did meanwhile took so long, whoever told of it (Continuum §5.1)."""
    if program.gap_since_ns and program.turn_index and not program.quarantined:
        ledger.estimates.lives.went_on(program.kind, program.turn_index)
        if not program.gap_delegates:
            gap_ns = now_ns - program.gap_since_ns
            ledger.estimates.gaps.add(program.gap_tool, gap_ns)
            ledger.estimates.lives.cycled(program.kind, gap_ns + program.last_turn_ns)
    program.idle_since_ns = program.gap_since_ns = 0
    program.gap_has_tool = program.gap_delegates = False
    program.gap_tool, program.keep_ratio, program.weighed_at_ns = "", -1.0, 0
    ledger.lend(program)


def first_token(ledger: "Ledger", event: ev.FirstToken, now_ns: int) -> None:
    program = ledger.programs.get(event.program_id)
    if program is None:
        ledger.state.counts.late += 1  # it ended, and was forgotten
        return
    estimates = ledger.estimates
    computed_tokens = event.prompt_tokens - event.cached_tokens
    if event.prefill_ns > 0 and computed_tokens >= _LEAST_PREFILL_TOKENS and not event.loaded_tokens:
        estimates.prefill.add(computed_tokens, event.cached_tokens, event.prefill_ns)
    if event.prompt_tokens <= 0:
        return
    estimates.hits.add(event.cached_tokens / event.prompt_tokens)
    if program.turn_index == 0:
        estimates.shared_tokens.add(event.cached_tokens)
        return
    if event.prompt_tokens < program.prompt_tokens:
        return  # the agent rewrote its history: what was cached is not what it asks for
    _came_back(ledger, program, event)
    if event.cached_tokens < ledger.cold_return_ratio * program.prompt_tokens:
        estimates.eviction_delay.add(event.launch_delay_ns)
        if program.warm:
            ledger.state.signals.cold_returns += 1


def _came_back(ledger: "Ledger", program: Program, event: ev.FirstToken) -> None:
    """Learn what it cost to have back what had left the device of the program's context."""
    prefill, loaded_tokens = ledger.estimates.prefill, event.loaded_tokens
    lost_tokens = max(0, min(program.context_tokens, event.prompt_tokens) - event.cached_tokens)
    if lost_tokens + loaded_tokens < _LEAST_PREFILL_TOKENS:
        return
    load_ns = computing_ns = 0
    if loaded_tokens:
        alone_ns = prefill.part_ns(event.prompt_tokens - event.cached_tokens, event.cached_tokens)
        load_ns = max(0, event.prefill_ns - alone_ns)
        computing_ns = prefill.part_ns(loaded_tokens, event.cached_tokens - loaded_tokens)
    ledger.estimates.displaced.add(lost_tokens, loaded_tokens, load_ns, computing_ns)


def turn_ended(ledger: "Ledger", event: ev.TurnEnded, now_ns: int) -> None:
    program = ledger.programs.get(event.program_id)
    turn = ledger.state.running.get(event.turn_id)
    if turn is None:
        ledger.let_go(event.turn_id, now_ns)  # it ran, or it never will
        ledger.ended_early(event.turn_id, event.publisher, now_ns, "turn")
        if program is not None and not program.open_turns:
            program.gap_has_tool, program.gap_since_ns = False, now_ns  # its beginning, a gap's end, is lost
    elif turn.program_id != event.program_id:
        raise RemoteEventError(
            f"{event.publisher}: turn {event.turn_id!r} is {turn.program_id!r}'s, not {event.program_id!r}'s"
        )
    else:
        turn_left(ledger, event.turn_id, now_ns)
    if program is None or not event.ok:
        return
    program.last_seen_ns = now_ns
    program.turn_index += 1
    program.last_turn_id = event.turn_id
    program.turned_ns = now_ns - ledger.lateness.of(event.publisher, event.at_ns, now_ns)
    program.prompt_tokens = event.prompt_tokens
    program.context_tokens = event.prompt_tokens + event.output_tokens
    grown_tokens = max(0, program.context_tokens - program.peak_tokens)
    if program.first_tokens and not program.quarantined:
        ledger.estimates.lives.grew(program.kind, grown_tokens)
    elif not program.quarantined and event.prompt_tokens:
        program.first_tokens = event.prompt_tokens
        ledger.estimates.lives.began(program.kind, event.prompt_tokens)
    program.peak_tokens += grown_tokens
    program.service_ns += event.service_ns
    program.kv_tier = Tier.HBM
    program.warm = program.status is Status.ACTIVE
    ledger.charge(program, ledger.estimates.blocks(program.context_tokens))
    if not program.quarantined:
        ledger.estimates.turn_ended(program.context_tokens, event.output_tokens, event.service_ns)
    if not program.open_turns and program.status is Status.ACTIVE:
        ledger.changed[program.program_id] = None
    read = ledger.state.replies.pop(event.turn_id, None)
    if read is None:
        _asks_for(ledger, program, event.tool, event.tool_calls)
    else:
        _answered(ledger, program, read, now_ns)


def reply_read(ledger: "Ledger", event: ev.ReplyRead, now_ns: int) -> None:
    program, replies = ledger.programs.get(event.program_id), ledger.state.replies
    if program is None or program.last_turn_id != event.turn_id:
        replies[event.turn_id] = event  # its end is on the way, unless nobody tells of turns
        if len(replies) > _MOST_REPLIES:
            del replies[next(iter(replies))]
    if event.turn_id in ledger.state.running:
        return
    if program is None or program.status is Status.ENDED:
        ledger.state.counts.late += 1
        return
    if program.queued_turns or program.open_turns:
        # It goes on; unless its gate no longer holds that turn, of which it has yet to tell, or the engine is gone
        # that ran it, and took its last words along.
        program.called_nothing = event.tool_calls == 0
        ledger.state.counts.late += 1
        return
    _answered(ledger, program, event, now_ns)


def _answered(ledger: "Ledger", program: Program, reply: ev.ReplyRead, now_ns: int) -> None:
    """The turn has ended, and so has its reply."""
    _asks_for(ledger, program, reply.tool, reply.tool_calls)
    if reply.is_last and program.may_end and not program.queued_turns:
        ledger.end(program, now_ns, "its client said that this turn was the last")
        program.ended_by_word = True


def _asks_for(ledger: "Ledger", program: Program, tool: str, tool_calls: int) -> None:
    """What the reply of the turn that ended calls; -1 calls: nobody looked."""
    program.called_nothing = tool_calls == 0
    if tool and not program.gap_has_tool:  # else the tool itself was reported, by the name that its times go by
        program.tool = program.gap_tool = tool
        ledger.changed[program.program_id] = None


def turn_left(ledger: "Ledger", turn_id: str, now_ns: int) -> None:
    """An open turn is over, whatever became of it."""
    turn = ledger.state.running.pop(turn_id)
    if ledger.totals.several:
        ledger.totals.count_turn(turn, -1)
    program = ledger.programs[turn.program_id]
    program.open_turns -= 1
    if not program.open_turns:
        program.last_turn_ns = now_ns - program.phase_since_ns
        idleness.acts(program, now_ns)
        program.gap_since_ns = now_ns
        if program.open_tools:  # the tool was told first, by another publisher: now the program acts
            ledger.changed[program.program_id] = None
    if not ledger.state.running:
        ledger.state.engine_idle_since_ns = now_ns
    ledger.note_idle(program, now_ns)


# Samples and answers


def pool_sampled(ledger: "Ledger", event: ev.PoolSampled, now_ns: int) -> None:
    # A publisher's first sample does not tell when its retractions happened.
    before = ledger.state.retractions.get(event.publisher, event.retractions)
    ledger.state.signals.retractions += max(0, event.retractions - before)
    ledger.state.retractions[event.publisher] = event.retractions
    place, pools = place_of(event.publisher), ledger.state.pools
    pools[place] = event
    if event.block_tokens != ledger.estimates.block_tokens and place == next(iter(pools)):
        ledger.resize_blocks(max(1, event.block_tokens))
    ledger.hear_pools()


def host_sampled(ledger: "Ledger", event: ev.HostSampled, now_ns: int) -> None:
    ledger.state.host = event


def command_applied(ledger: "Ledger", event: ev.CommandApplied, now_ns: int) -> None:
    ledger.state.counts.commands_applied += 1
    tier = ledger.state.moving.pop(event.command_id, None)
    program = ledger.programs.get(event.program_id)
    if tier is not None and program is not None and program.status is not Status.ENDED:
        program.kv_tier = tier


def command_rejected(ledger: "Ledger", event: ev.CommandRejected, now_ns: int) -> None:
    ledger.state.counts.commands_rejected += 1
    program, place = ledger.programs.get(event.program_id), place_of(event.publisher)
    if program is not None and program.replica != place and place in ledger.state.pools and program.replica:
        return  # every engine hears every command: this one does not have the program
    if ledger.state.moving.pop(event.command_id, None) is not None:
        return  # its KV stays where it is, and a pin that the move would have ended has ended
    if program is not None:
        program.retained_until_ns = 0  # only pins are believed before they are confirmed


def operator_orders(ledger: "Ledger", event: ev.OperatorOrders, now_ns: int) -> None:
    ledger.state.ordered_held = dict.fromkeys(event.held)
    ledger.state.draining = event.draining


def publisher_state(ledger: "Ledger", event: ev.PublisherState, now_ns: int) -> None:
    """Replace the slice of state that this publisher owns; what it lists and we know stays as it is."""
    publisher, at_ns = event.publisher, event.at_ns
    sequence = ledger.state.sequences.get(publisher)
    if sequence is not None and sequence.is_past(event.sequence):
        ledger.state.counts.late += 1  # hooks say it again with all that they said: it was so then
        return
    if event.part or event.more:
        parts = ledger.state.parts.pop(publisher, [])[: event.part]
        if len(parts) < event.part:
            return  # one before it is lost: the gap is asked about, and the whole comes again
        parts.append(event)
        if event.more:
            ledger.state.parts[publisher] = parts
            return
        event = joined(parts)
    drop_publisher(
        ledger,
        publisher,
        now_ns,
        keep={t.turn_id for t in (*event.held_turns, *event.open_turns)}
        | {tool_key(c.program_id, c.call_id) for c in event.open_tools},
    )
    for grant in event.grants:
        _holds_slot(ledger, grant, now_ns)
    for turn in event.open_turns:
        name, turn_id = turn.program_id, turn.turn_id
        submitted = ev.TurnSubmitted(
            publisher=publisher, at_ns=at_ns, program_id=name, turn_id=turn_id, projected_blocks=turn.blocks
        )
        ledger.program(name, now_ns, parent_id=turn.parent_id)
        turn_submitted(ledger, submitted, now_ns)
    for turn in event.held_turns:
        name, turn_id, parent_id = turn.program_id, turn.turn_id, turn.parent_id
        queued = ev.TurnQueued(
            publisher=publisher, at_ns=at_ns, program_id=name, turn_id=turn_id, parent_id=parent_id
        )
        turn_queued(ledger, queued, now_ns)
    for call in event.open_tools:
        name, call_id, tool = call.program_id, call.call_id, call.tool
        if call.started:
            started = ev.ToolStarted(publisher=publisher, at_ns=at_ns, program_id=name, call_id=call_id, tool=tool)
            tool_started(ledger, started, now_ns)
        else:
            enqueued = ev.ToolEnqueued(
                publisher=publisher, program_id=name, call_id=call_id, tool=tool, wants_slot=call.wants_slot
            )
            tool_enqueued(ledger, enqueued, now_ns)
    for pin in event.pins:
        ledger.program(pin.program_id, now_ns).retained_until_ns = now_ns + pin.ttl_ns
    if sequence is not None:
        sequence.resynced()
    ledger.resync.pop(publisher, None)


def _holds_slot(ledger: "Ledger", grant: ev.Grant, now_ns: int) -> None:
    """A gate holds the grant of a daemon: one that we forgot, or one whose end the gate has missed."""
    known = ledger.programs.get(grant.program_id)
    root = ledger.root_of(known, now_ns) if known is not None else None
    is_over = root is not None and root.status is Status.ENDED and root.ended_by_word
    is_active = root is not None and root.status is Status.ACTIVE
    if is_over or (not is_active and ledger.state.commands.remembers(grant.command_id)):
        ledger.state.overheld[grant.program_id] = None
        return
    program = known if known is not None else ledger.program(grant.program_id, now_ns)
    root = ledger.root_of(program, now_ns)
    ledger.move(root, Trigger.SUBMIT, now_ns)
    ledger.state.unasked.pop(root.program_id, None)
    ledger.move(program, Trigger.SUBMIT, now_ns)
    if not program.open_turns and not program.queued_turns and not program.gap_since_ns:
        program.gap_since_ns = now_ns  # it is between two turns: since when, nobody knows


def drop_publisher(ledger: "Ledger", publisher: str, now_ns: int, *, keep: Container[str] = ()) -> None:
    """Forget the turns and tools that only ``publisher`` told of, but for the ids in ``keep``.

    What it contradicted itself about is forgotten too.
    """
    state = ledger.state
    for key in [key for key, held in state.held.items() if held.publisher == publisher]:
        if key not in keep:
            ledger.let_go(key, now_ns)
    for key in [key for key, turn in state.running.items() if turn.publisher == publisher]:
        if key not in keep:
            turn_left(ledger, key, now_ns)
    for key in [key for key, call in state.tools.items() if call.publisher == publisher]:
        if key not in keep:
            ledger.drop_tool(key, now_ns)
    for program in ledger.programs.values():
        if program.quarantined and program.accused == publisher:
            program.quarantined, program.accused = False, ""


HANDLERS: dict[type[ev.Event], Callable[["Ledger", Any, int], None]] = {
    ev.ProgramArrived: program_arrived,
    ev.ProgramEnded: program_ended,
    ev.TurnQueued: turn_queued,
    ev.TurnAbandoned: turn_abandoned,
    ev.TurnSubmitted: turn_submitted,
    ev.FirstToken: first_token,
    ev.TurnEnded: turn_ended,
    ev.ToolEnqueued: tool_enqueued,
    ev.ToolStarted: tool_started,
    ev.ToolEnded: tool_ended,
    ev.PoolSampled: pool_sampled,
    ev.HostSampled: host_sampled,
    ev.CommandApplied: command_applied,
    ev.CommandRejected: command_rejected,
    ev.PublisherState: publisher_state,
    ev.ReplyRead: reply_read,
    ev.EnvironmentWanted: environment_wanted,
    ev.OperatorOrders: operator_orders,
}
