"""Events of core as protobuf messages, and back, checked."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from google.protobuf.message import DecodeError

from controlplane.core.model.errors import LocalEventError, RemoteEventError
from controlplane.core.model.events import Event
from controlplane.core.model.steps import Steps, run
from controlplane.core.model.text import printable, sanitize
from controlplane.core.model.types import MOST_NAME
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.codegen import kinds, reader, writer
from controlplane.wire.validation import REASON, find_fault

_AT_ONCE = 1024  # events between two pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """What a batch held. ``rejected`` describes each event that was left out, by sequence number and field.

    The batch covers ``first_sequence`` to ``last_sequence``, rejected events included; an empty batch has
    ``last_sequence == first_sequence - 1``.
    """

    publisher: str
    events: list[Event]
    rejected: list[str]
    first_sequence: int
    last_sequence: int


def encode_events(publisher: str, first_sequence: int, items: Sequence[tuple[int, Event]]) -> bytes:
    """One batch: ``items`` are (at_ns, event) in sequence, the first of them ``first_sequence``.

    The events' own ``publisher``, ``sequence`` and ``at_ns`` are not read.

    :raises LocalEventError: an event has a field of the wrong type or out of 64 bits, or is of no known kind.
    """
    batch = pb.EventBatch(publisher=publisher, first_sequence=first_sequence)
    add = batch.events.add
    for at_ns, event in items:
        known = _WRITERS.get(type(event))
        if known is None:
            raise LocalEventError(f"no event: {type(event).__name__}")
        kind, write = known
        try:
            message = add()
            message.at_ns = at_ns
            body = getattr(message, kind)
            try:
                write(event, body)
            except UnicodeEncodeError:  # half a surrogate pair, which no message can carry
                body.Clear()
                write(_carried(event), body)
        except (TypeError, ValueError, AttributeError) as error:
            raise LocalEventError(f"cannot encode {event!r:.200}: {error}") from error
    return batch.SerializeToString()


def _carried(record: Any) -> Any:
    """The event, or a record within it, with names and reasons that a message can carry."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = printable(value) if name == REASON else sanitize(value)
        elif isinstance(value, tuple | list):
            values[name] = tuple(_carried(each) if is_dataclass(each) else sanitize(each) for each in value)
    return type(record)(**values)


def decode_events(data: bytes) -> DecodedBatch:
    """Read one batch; events are in sequence.

    An event that makes no sense (an empty program_id, a negative count, a kind that this version does not
    know) is left out and described in ``rejected``: the rest of the batch is good.

    :raises RemoteEventError: the bytes are no batch, or it does not say whose it is or where it begins.
    """
    return run(decoding_events(data))


def decoding_events(data: bytes) -> Steps[DecodedBatch]:
    """``decode_events``, with pauses: a message of a megabyte may hold half a million events."""
    try:
        batch = pb.EventBatch.FromString(data)
    except DecodeError as error:
        raise RemoteEventError(f"malformed event batch of {len(data)} bytes: {error}") from error
    publisher = "/".join(map(sanitize, batch.publisher.split("/")))
    first_sequence = batch.first_sequence
    if not 0 < len(publisher) <= MOST_NAME:
        problem = f"has {len(publisher)} characters, and {MOST_NAME} at most are read" if publisher else "is empty"
        raise RemoteEventError(f"event batch of {len(data)} bytes: publisher {problem}")
    if first_sequence < 1:
        raise RemoteEventError(f"event batch from {publisher}: first_sequence: expected >= 1, got {first_sequence}")
    events: list[Event] = []
    rejected: list[str] = []
    sequence = first_sequence - 1
    for message in batch.events:
        sequence += 1
        if not sequence % _AT_ONCE:
            yield
        kind = message.WhichOneof("kind")
        if kind is None:
            rejected.append(f"event {sequence}: no kind that this version knows")
            continue
        body = getattr(message, kind)
        at_ns = message.at_ns
        event = _READERS[kind](body, publisher, sequence, at_ns)
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


_READERS = {kind: reader(event_type, message) for event_type, kind, message in kinds()}
_WRITERS = {event_type: (kind, writer(event_type, message)) for event_type, kind, message in kinds()}
