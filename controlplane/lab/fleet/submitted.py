"""What engines took, as their own events say: whether a request was run more than once."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import nats
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from controlplane.core.model.errors import EngineUnavailable
from controlplane.core.model.events import TurnSubmitted
from controlplane.transport.nats_options import nats_options
from controlplane.transport.subjects import stream_name
from controlplane.wire.codec import decode_events

_QUIET_S = 2.0
_ELECTED_WITHIN_S = 60.0
_ASK_AGAIN_S = 0.2

_Turn = tuple[str, str]  # its program and its own id


async def turns_submitted(url: str, nodes: Iterable[str]) -> Counter[str]:
    """How many turns of each program engines took. A turn that two engines took counts twice.

    An engine that was killed may have told less than it took. A cluster drops what it is asked while it elects a
    leader, so it is asked again. Raises ``EngineUnavailable`` where no answer comes for a minute, and what
    ``nats.connect`` raises.
    """
    client = await nats.connect(**nats_options(url))
    try:
        return Counter([program for node in nodes for program, _ in await _turns(client.jetstream(), node)])
    finally:
        await client.close()


async def _turns(stream: JetStreamContext, node: str) -> set[_Turn]:
    until_s = time.monotonic() + _ELECTED_WITHIN_S
    while True:
        try:
            return await _read(stream, stream_name(node))
        except NotFoundError:  # its engine never told anything
            return set()
        except (TimeoutError, NatsError) as error:
            if time.monotonic() > until_s:
                raise EngineUnavailable(f"the bus does not say what {node} took: {error or 'no answer'}") from None
            await asyncio.sleep(_ASK_AGAIN_S)


async def _read(stream: JetStreamContext, name: str) -> set[_Turn]:
    """The whole stream, or an error of nats."""
    seen: set[_Turn] = set()
    if not (await stream.stream_info(name)).state.messages:
        return seen
    read = await stream.subscribe("", stream=name, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL)
    try:
        while True:
            message = await read.next_msg(timeout=_QUIET_S)
            if ".event." in message.subject:
                turns = [event for event in decode_events(message.data).events if isinstance(event, TurnSubmitted)]
                seen |= {(turn.program_id, turn.turn_id) for turn in turns}
            if message.metadata.num_pending == 0:
                return seen
    finally:
        await read.unsubscribe()
