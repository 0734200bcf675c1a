"""Events of core as protobuf messages."""

from collections.abc import Sequence

from controlplane.core.errors import LocalEventError
from controlplane.core.events import Event
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.copying import kinds, writer


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
            raise LocalEventError(f"not an event: {type(event).__name__}")
        kind, write = known
        try:
            message = add()
            message.at_ns = at_ns
            write(event, getattr(message, kind))
        except (TypeError, ValueError, AttributeError) as error:
            raise LocalEventError(f"cannot encode {event!r:.200}: {error}") from error
    return batch.SerializeToString()


_WRITERS = {event_type: (kind, writer(event_type, message)) for event_type, kind, message in kinds()}
