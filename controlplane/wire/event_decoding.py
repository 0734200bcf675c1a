"""Batches from the bus as events of core, checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from controlplane.core import events as core
from controlplane.core.errors import RemoteEventError
from controlplane.core.types import MOST_NAME
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.fault import COUNT_BITS, MOST_REASON, NAME_BITS, find_fault
from controlplane.wire.quick import quick


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """What a batch held. ``rejected`` describes each event that was left out, by sequence number and field.

    The batch covers ``first_sequence`` to ``last_sequence``, rejected events included; an empty batch has
    ``last_sequence == first_sequence - 1``.
    """

    publisher: str
    events: list[core.Event]
    rejected: list[str]
    first_sequence: int
    last_sequence: int


def decode_events(data: bytes) -> DecodedBatch:
    """Read one batch; events are in sequence.

    An event that makes no sense (an empty program_id, a negative count, a kind that this version does not
    know) is left out and described in ``rejected``: the rest of the batch is good.

    :raises RemoteEventError: the bytes are no batch, or it does not say whose it is or where it begins.
    """
    try:
        batch = pb.EventBatch.FromString(data)
    except DecodeError as error:
        raise RemoteEventError(f"malformed event batch of {len(data)} bytes: {error}") from error
    publisher = batch.publisher
    first_sequence = batch.first_sequence
    if not 0 < len(publisher) <= MOST_NAME:
        problem = f"has {len(publisher)} characters, and {MOST_NAME} at most are read" if publisher else "is empty"
        raise RemoteEventError(f"event batch of {len(data)} bytes: publisher {problem}")
    if first_sequence < 1:
        raise RemoteEventError(f"event batch from {publisher}: first_sequence: expected >= 1, got {first_sequence}")
    events: list[core.Event] = []
    rejected: list[str] = []
    sequence = first_sequence - 1
    for message in batch.events:
        sequence += 1
        kind = message.WhichOneof("kind")
        if kind is None:
            rejected.append(f"event {sequence}: no kind that this version knows")
            continue
        body = getattr(message, kind)
        at_ns = message.at_ns
        event = _DECODERS[kind](body, publisher, sequence, at_ns)
        if event is None or at_ns < 0:
            fault = find_fault(body) if event is None else f".at_ns: expected >= 0, got {at_ns}"
            rejected.append(f"event {sequence}: {kind}{fault}")
            continue
        events.append(event)
    return DecodedBatch(
        publisher=publisher,
        events=events,
        rejected=rejected,
        first_sequence=first_sequence,
        last_sequence=sequence,
    )


# Each decoder below takes (message, publisher, sequence, at_ns) and returns None where a field is at fault;
# find_fault then looks which. An "or" of integers shifted right is 0 if and only if each of them is within bounds,
# negative ones included. Of names it is the lengths less one: an empty name is at fault as much as an endless one.

_ProgramArrived = quick(core.ProgramArrived)
_TurnQueued = quick(core.TurnQueued)
_TurnAbandoned = quick(core.TurnAbandoned)
_TurnSubmitted = quick(core.TurnSubmitted)
_FirstToken = quick(core.FirstToken)
_TurnEnded = quick(core.TurnEnded)
_ReplyRead = quick(core.ReplyRead)
_EnvironmentWanted = quick(core.EnvironmentWanted)
_ToolEnqueued = quick(core.ToolEnqueued)
_ToolStarted = quick(core.ToolStarted)
_ToolEnded = quick(core.ToolEnded)


def _program_arrived(m: pb.ProgramArrived, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, tenant, parent_id = m.program_id, m.tenant, m.parent_id
    if (len(program_id) - 1) >> NAME_BITS or max(len(tenant), len(parent_id)) > MOST_NAME:
        return None
    return _ProgramArrived(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        tenant=tenant,
        parent_id=parent_id,
        aside=m.aside,
    )


def _turn_queued(m: pb.TurnQueued, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id = m.program_id, m.turn_id
    prompt_bytes, prompt_tokens = m.prompt_bytes, m.prompt_tokens
    parent_id, tenant, agent = m.parent_id, m.tenant, m.agent
    if max(len(parent_id), len(tenant), len(agent)) > MOST_NAME:
        return None
    if (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS or (prompt_bytes | prompt_tokens) >> COUNT_BITS:
        return None
    return _TurnQueued(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        prompt_bytes=prompt_bytes,
        prompt_tokens=prompt_tokens,
        parent_id=parent_id,
        tenant=tenant,
        agent=agent,
    )


def _turn_abandoned(m: pb.TurnAbandoned, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id = m.program_id, m.turn_id
    if (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS:
        return None
    return _TurnAbandoned(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        reason=m.reason[:MOST_REASON],
    )


def _turn_submitted(m: pb.TurnSubmitted, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id = m.program_id, m.turn_id
    blocks, tokens, prompt_bytes = m.projected_blocks, m.prompt_tokens, m.prompt_bytes
    if (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS or (blocks | tokens | prompt_bytes) >> COUNT_BITS:
        return None
    return _TurnSubmitted(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        projected_blocks=blocks,
        prompt_tokens=tokens,
        prompt_bytes=prompt_bytes,
    )


def _first_token(m: pb.FirstToken, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id = m.program_id, m.turn_id
    delay_ns, prefill_ns, tokens, cached = m.launch_delay_ns, m.prefill_ns, m.prompt_tokens, m.cached_tokens
    loaded = m.loaded_tokens
    faulty = (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS
    if faulty or (delay_ns | prefill_ns | tokens | cached | loaded) >> COUNT_BITS:
        return None
    return _FirstToken(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        launch_delay_ns=delay_ns,
        prefill_ns=prefill_ns,
        prompt_tokens=tokens,
        cached_tokens=cached,
        loaded_tokens=loaded,
    )


def _turn_ended(m: pb.TurnEnded, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id = m.program_id, m.turn_id
    prompt, output, cached = m.prompt_tokens, m.output_tokens, m.cached_tokens
    service_ns, tool, tool_calls = m.service_ns, m.tool, m.tool_calls
    faulty = (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS or len(tool) > MOST_NAME
    if faulty or (prompt | output | cached | service_ns | tool_calls) >> COUNT_BITS:
        return None
    if tool_calls == 0 and not m.HasField("tool_calls"):
        tool_calls = -1
    return _TurnEnded(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached,
        service_ns=service_ns,
        tool=tool,
        tool_calls=tool_calls,
        ok=not m.failed,
    )


def _reply_read(m: pb.ReplyRead, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, turn_id, tool, tool_calls = m.program_id, m.turn_id, m.tool, m.tool_calls
    faulty = (len(program_id) - 1 | len(turn_id) - 1) >> NAME_BITS or len(tool) > MOST_NAME
    if faulty or tool_calls >> COUNT_BITS:
        return None
    return _ReplyRead(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        turn_id=turn_id,
        tool=tool,
        tool_calls=tool_calls,
        is_last=m.is_last,
    )


def _environment_wanted(m: pb.EnvironmentWanted, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if (len(m.program_id) - 1) >> NAME_BITS:
        return None
    return _EnvironmentWanted(publisher=publisher, sequence=sequence, at_ns=at_ns, program_id=m.program_id)


def _tool_enqueued(m: pb.ToolEnqueued, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, call_id, tool = m.program_id, m.call_id, m.tool
    if (len(program_id) - 1 | len(call_id) - 1 | len(tool) - 1) >> NAME_BITS:
        return None
    return _ToolEnqueued(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        call_id=call_id,
        tool=tool,
        wants_slot=m.wants_slot,
    )


def _tool_started(m: pb.ToolStarted, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, call_id, tool = m.program_id, m.call_id, m.tool
    if (len(program_id) - 1 | len(call_id) - 1 | len(tool) - 1) >> NAME_BITS:
        return None
    return _ToolStarted(
        publisher=publisher, sequence=sequence, at_ns=at_ns, program_id=program_id, call_id=call_id, tool=tool
    )


def _tool_ended(m: pb.ToolEnded, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    program_id, call_id, tool = m.program_id, m.call_id, m.tool
    duration_ns = m.duration_ns
    if (len(program_id) - 1 | len(call_id) - 1 | len(tool) - 1) >> NAME_BITS or duration_ns >> COUNT_BITS:
        return None
    return _ToolEnded(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        program_id=program_id,
        call_id=call_id,
        tool=tool,
        duration_ns=duration_ns,
        ok=not m.failed,
    )


# The rest are seldom: plain construction, checked by find_fault itself.


def _program_ended(m: pb.ProgramEnded, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if (len(m.program_id) - 1) >> NAME_BITS:
        return None
    return core.ProgramEnded(
        publisher=publisher, sequence=sequence, at_ns=at_ns, program_id=m.program_id, reason=m.reason[:MOST_REASON]
    )


def _pool_sampled(m: pb.PoolSampled, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if find_fault(m):
        return None
    return core.PoolSampled(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        total_blocks=m.total_blocks,
        free_blocks=m.free_blocks,
        evictable_blocks=m.evictable_blocks,
        retained_blocks=m.retained_blocks,
        block_tokens=m.block_tokens,
        turns_running=m.turns_running,
        turns_waiting=m.turns_waiting,
        retractions=m.retractions,
        host_total_blocks=m.host_total_blocks,
        host_used_blocks=m.host_used_blocks,
    )


def _host_sampled(m: pb.HostSampled, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if find_fault(m):
        return None
    return core.HostSampled(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        cpus=m.cpus,
        cpu_use_ratio=m.cpu_use_ratio,
        cpu_stall_ratio=m.cpu_stall_ratio,
    )


def _command_applied(m: pb.CommandApplied, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if m.command_id >> COUNT_BITS or len(m.program_id) > MOST_NAME:
        return None
    return core.CommandApplied(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        command_id=m.command_id,
        program_id=m.program_id,
    )


def _command_rejected(m: pb.CommandRejected, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if m.command_id >> COUNT_BITS or len(m.program_id) > MOST_NAME:
        return None
    return core.CommandRejected(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        command_id=m.command_id,
        program_id=m.program_id,
        reason=m.reason[:MOST_REASON],
    )


def _publisher_state(m: pb.PublisherState, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if find_fault(m):
        return None
    return core.PublisherState(
        publisher=publisher,
        sequence=sequence,
        at_ns=at_ns,
        held_turns=tuple(map(_open_turn, m.held_turns)),
        open_turns=tuple(map(_open_turn, m.open_turns)),
        open_tools=tuple(
            core.OpenTool(
                program_id=t.program_id,
                call_id=t.call_id,
                tool=t.tool,
                started=t.started,
                wants_slot=t.wants_slot,
            )
            for t in m.open_tools
        ),
        grants=tuple(core.Grant(program_id=g.program_id, command_id=g.command_id) for g in m.grants),
        pins=tuple(core.Pin(program_id=p.program_id, ttl_ns=p.ttl_ns) for p in m.pins),
        role=m.role,
        part=m.part,
        more=m.more,
    )


def _open_turn(m: pb.OpenTurn) -> core.OpenTurn:
    return core.OpenTurn(program_id=m.program_id, turn_id=m.turn_id, blocks=m.blocks, parent_id=m.parent_id)


def _operator_orders(m: pb.OperatorOrders, publisher: str, sequence: int, at_ns: int) -> core.Event | None:
    if find_fault(m):
        return None
    return core.OperatorOrders(
        publisher=publisher, sequence=sequence, at_ns=at_ns, held=tuple(m.held), draining=m.draining
    )


_DECODERS: dict[str, Callable[[Any, str, int, int], core.Event | None]] = {
    "program_arrived": _program_arrived,
    "turn_queued": _turn_queued,
    "turn_abandoned": _turn_abandoned,
    "turn_submitted": _turn_submitted,
    "first_token": _first_token,
    "turn_ended": _turn_ended,
    "reply_read": _reply_read,
    "tool_enqueued": _tool_enqueued,
    "tool_started": _tool_started,
    "tool_ended": _tool_ended,
    "program_ended": _program_ended,
    "pool_sampled": _pool_sampled,
    "host_sampled": _host_sampled,
    "command_applied": _command_applied,
    "command_rejected": _command_rejected,
    "publisher_state": _publisher_state,
    "environment_wanted": _environment_wanted,
    "operator_orders": _operator_orders,
}
