"""What engines took, as their own events say: whether a request was run more than once."""

from collections import Counter
from collections.abc import Iterable

import nats
from nats.errors import Error as NatsError
from nats.js.api import DeliverPolicy

from controlplane.core.events import TurnSubmitted
from controlplane.wire.codec import decode_events
from controlplane.wire.nats_options import servers
from controlplane.wire.subjects import stream_name

_QUIET_S = 2.0


async def turns_submitted(url: str, nodes: Iterable[str]) -> Counter[str]:
    """How many turns of each program engines took. A turn that two engines took counts twice.

    An engine that was killed may have told less than it took. Raises nats' errors.
    """
    client = await nats.connect(servers(url))
    try:
        seen = set()
        for node in nodes:
            read = await client.jetstream().subscribe(
                "", stream=stream_name(node), ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
            )
            try:
                while True:
                    message = await read.next_msg(timeout=_QUIET_S)
                    if ".event." in message.subject:
                        events = decode_events(message.data).events
                        turns = [event for event in events if isinstance(event, TurnSubmitted)]
                        seen |= {(node, turn.program_id, turn.turn_id) for turn in turns}
                    if message.metadata.num_pending == 0:
                        break
            except (TimeoutError, NatsError):  # an empty stream
                pass
            await read.unsubscribe()
        return Counter(program for _, program, _ in seen)
    finally:
        await client.close()
