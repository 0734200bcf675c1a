"""Events of core as protobuf messages."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from controlplane.core.errors import LocalEventError
from controlplane.core.events import (
    EVENT_TYPES,
    Event,
    OperatorOrders,
    PublisherState,
    ToolEnded,
    TurnEnded,
)
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.names import snake_case

_CARRIED_BY_THE_BATCH = frozenset(field.name for field in fields(Event))


def encode_events(publisher: str, first_sequence: int, items: Sequence[tuple[int, Event]]) -> bytes:
    """One batch: ``items`` are (at_ns, event) in sequence, the first of them ``first_sequence``.

    The events' own ``publisher``, ``sequence`` and ``at_ns`` are not read.

    :raises LocalEventError: an event has a field of the wrong type or out of 64 bits, or is of no known kind.
    """
    batch = pb.EventBatch(publisher=publisher, first_sequence=first_sequence)
    add = batch.events.add
    for at_ns, event in items:
        fill = _FILLS.get(type(event))
        if fill is None:
            raise LocalEventError(f"no event: {type(event).__name__}")
        try:
            message = add()
            message.at_ns = at_ns
            fill(event, message)
        except (TypeError, ValueError, AttributeError) as error:
            raise LocalEventError(f"cannot encode {event!r:.200}: {error}") from error
    return batch.SerializeToString()


Fill = Callable[[Any, pb.Event], None]


def _copier(event_type: type[Event], *, leave_out: Sequence[str] = ()) -> Fill:
    """Copy the fields that have the same name on both sides."""
    left_out = _CARRIED_BY_THE_BATCH.union(leave_out)
    names = tuple(field.name for field in fields(event_type) if field.name not in left_out)
    kind = snake_case(event_type)

    def copy(event: Event, message: pb.Event) -> None:
        target = getattr(message, kind)
        target.SetInParent()  # a message of defaults only must still say its kind
        for name in names:
            setattr(target, name, getattr(event, name))

    return copy


_copy_turn_ended = _copier(TurnEnded, leave_out=("ok", "tool_calls"))
_copy_tool_ended = _copier(ToolEnded, leave_out=("ok",))


def _turn_ended(event: TurnEnded, message: pb.Event) -> None:
    _copy_turn_ended(event, message)
    message.turn_ended.failed = not event.ok
    if event.tool_calls >= 0:
        message.turn_ended.tool_calls = event.tool_calls


def _tool_ended(event: ToolEnded, message: pb.Event) -> None:
    _copy_tool_ended(event, message)
    message.tool_ended.failed = not event.ok


def _publisher_state(event: PublisherState, message: pb.Event) -> None:
    state = message.publisher_state
    state.SetInParent()
    state.role, state.part, state.more = event.role, event.part, event.more
    for grant in event.grants:
        state.grants.add(program_id=grant.program_id, command_id=grant.command_id)
    for turns, target in ((event.held_turns, state.held_turns), (event.open_turns, state.open_turns)):
        for turn in turns:
            target.add(
                program_id=turn.program_id,
                turn_id=turn.turn_id,
                blocks=turn.blocks,
                parent_id=turn.parent_id,
            )
    for tool in event.open_tools:
        state.open_tools.add(
            program_id=tool.program_id,
            call_id=tool.call_id,
            tool=tool.tool,
            started=tool.started,
            wants_slot=tool.wants_slot,
        )
    for pin in event.pins:
        state.pins.add(program_id=pin.program_id, ttl_ns=pin.ttl_ns)


def _operator_orders(event: OperatorOrders, message: pb.Event) -> None:
    orders = message.operator_orders
    orders.SetInParent()
    orders.held.extend(event.held)
    orders.draining = event.draining


_SPECIAL: dict[type[Event], Fill] = {
    TurnEnded: _turn_ended,
    ToolEnded: _tool_ended,
    PublisherState: _publisher_state,
    OperatorOrders: _operator_orders,
}
_FILLS: dict[type[Event], Fill] = {
    event_type: _SPECIAL.get(event_type) or _copier(event_type) for event_type in EVENT_TYPES
}
