"""The fleet's bus: one stream with the fleet's own events and commands, and what engines tell on their nodes.

The stream sources the engines' events from each node's stream, and nothing else of it: a node's gate and its daemon
stay the node's. So there is one stream to read, one position and one ledger (docs/adr/0050). A node's stream that
nobody has made yet is made as the node's daemon would make it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ExternalStream, StreamConfig, StreamSource, SubjectTransform
from nats.js.api import StreamInfo as JetStreamInfo
from nats.js.errors import APIError, NotFoundError

from controlplane.core.model.commands import Command, StateRequest
from controlplane.core.model.events import Event, PublisherState, TurnAbandoned, TurnQueued, TurnsRefused
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.node_stream import node_stream
from controlplane.daemon.process.logs import logger
from controlplane.fleet.buckets import replicated
from controlplane.fleet.connection import impatient
from controlplane.transport.subjects import PREFIX, check_name, command_subject, event_subject, stream_name
from controlplane.wire.codec import encode_commands

_ENGINE = "engine"
_GATES = TurnQueued | TurnAbandoned | TurnsRefused
_TIMEOUT_S = 5.0
_ANSWER_S = 2.0


def hand_over_subject(fleet: str) -> str:
    """Where a fleet's leader is asked to hand over."""
    return f"{PREFIX}.{check_name(fleet, field='fleet')}.handover"


def of_engines(fleet: str) -> Callable[[Sequence[Event], str], Sequence[Event]]:
    """What counts of a batch that came on a subject: of an engine that is its own gate too, not what the gate told.

    The turns that such a gate holds have a slot of the fleet: it is the node's to let them in.
    """
    own = f"{PREFIX}.{fleet}."

    def event_filter(events: Sequence[Event], subject: str) -> Sequence[Event]:
        if subject.startswith(own):
            return events
        return [_without_gate(event) for event in events if not isinstance(event, _GATES)]

    return event_filter


def _without_gate(event: Event) -> Event:
    return replace(event, held_turns=(), grants=()) if isinstance(event, PublisherState) else event


class FleetBus(Bus):
    """The bus of the fleet ``fleet``; ``nodes`` are those whose engines it hears.

    ``domains`` names, by node, the JetStream domain of a node whose stream a leaf node's server keeps. A node that
    cannot be reached is left out until ``join`` is called again; ``missing`` has their names. Who does not lead
    reads the stream as it is: ``may_change`` says whether this daemon leads.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        nodes: Iterable[str] = (),
        *,
        domains: Mapping[str, str] = MappingProxyType({}),
        may_change: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(url, fleet, connect=impatient)
        self._may_change = may_change
        self.nodes = frozenset(nodes) - {fleet}
        self.missing: frozenset[str] = frozenset()
        self._domains = domains
        self._fleet_log = logger("fleet")

    async def join(self, nodes: Iterable[str]) -> None:
        """Hear the engines of these nodes, and of no others. Raises ``EngineUnavailable``."""
        wanted = frozenset(nodes) - {self.node}
        if wanted != self.nodes or self.missing:
            self.nodes = wanted
            await self.ensure_stream()

    async def send(self, commands: Sequence[Command]) -> None:
        """As a node's; and who is asked for its state and is an engine on a node is asked there.

        Such a request has no number, since the node's own daemon counts what is sent there.
        """
        await super().send(commands)
        for request in commands:
            if isinstance(request, StateRequest):
                asked = replace(request, command_id=0)
                for node in self._nodes_of(request):
                    await self._publish(command_subject(node), encode_commands([asked]))

    async def ask_to_hand_over(self) -> str:
        """Ask the leader to hand over: what it says, or nothing if nobody answers."""
        try:
            reply = await self._client.request(hand_over_subject(self.node), b"", timeout=_ANSWER_S)
        except (NatsError, TimeoutError, OSError):
            return ""
        return bytes(reply.data).decode(errors="replace")

    async def answer_hand_over(self, hand_over: Callable[[], Awaitable[str]], leads: Callable[[], bool]) -> None:
        """Hand over when asked, from now on; who does not lead leaves the answer to who does."""

        async def reply(message: Msg) -> None:
            if message.reply and leads():
                await message.respond((await hand_over()).encode())

        await self._client.subscribe(hand_over_subject(self.node), cb=reply)

    def _nodes_of(self, request: StateRequest) -> list[str]:
        node = request.publisher.partition("/")[0]
        return sorted(self.nodes) if not node else [node] if node in self.nodes else []

    # The stream

    async def _stream_of(self, name: str, max_bytes: int) -> JetStreamInfo:
        jetstream = self._client.jetstream(timeout=_TIMEOUT_S)
        info = await _info(jetstream, name)
        if info is not None and not self._may_change():
            return info
        known = info.config if info is not None else None
        before = {str(source.name): source for source in (known.sources or [] if known else [])}
        sources, missing = [], set()
        for node in sorted(self.nodes):
            source = before.get(stream_name(node)) or await self._source(jetstream, node, max_bytes)
            if source is None:
                missing.add(node)
            else:
                sources.append(source)
        self.missing = frozenset(missing)
        config = replace(node_stream(self.node, max_bytes), sources=sources)
        if known is not None:
            config.num_replicas = known.num_replicas
            if before.keys() != {str(source.name) for source in sources}:
                self._fleet_log.info("hears", nodes=sorted(self.nodes - missing), missing=sorted(missing))
                return await jetstream.update_stream(config)
            return await self.stream_as(jetstream, config)
        return await _made(jetstream, config)

    async def _source(self, jetstream: JetStreamContext, node: str, max_bytes: int) -> StreamSource | None:
        """The engines' events of the node's stream, from now on; None if it cannot be reached."""
        name, domain = stream_name(node), self._domains.get(node, "")
        home = self._client.jetstream(domain=domain, timeout=_TIMEOUT_S) if domain else jetstream
        try:
            last = (await home.stream_info(name)).state.last_seq
        except NotFoundError as error:
            if domain:
                self._fleet_log.warning("node has no stream yet", node=node, error=str(error))
                return None
            last = (await _made(jetstream, node_stream(node, max_bytes))).state.last_seq
        except (APIError, NatsError, TimeoutError, OSError) as error:
            self._fleet_log.warning("node's stream not reached", node=node, error=str(error) or "no answer")
            return None
        kinds = [event_subject(node, _ENGINE), f"{event_subject(node, _ENGINE)}.>"]
        return StreamSource(
            name=name,
            opt_start_seq=last + 1,  # what was told before is history: engines are asked for what they hold now
            subject_transforms=[SubjectTransform(src=kind, dest=kind) for kind in kinds],
            external=ExternalStream(api=f"$JS.{domain}.API", deliver="") if domain else None,
        )


async def _info(jetstream: JetStreamContext, name: str) -> JetStreamInfo | None:
    try:
        return await jetstream.stream_info(name)
    except NotFoundError:
        return None


async def _made(jetstream: JetStreamContext, config: StreamConfig) -> JetStreamInfo:
    """On as many servers as a lease is kept on."""
    return await replicated(lambda copies: jetstream.add_stream(replace(config, num_replicas=copies)))
