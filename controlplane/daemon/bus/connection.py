"""The bus as the daemon sees it: a stream to read from a position, commands and heartbeats to send.

The stream keeps events and commands of one node. Events are read through an ordered consumer, so that each batch
has a position and nothing is missed while the daemon is away; commands leave over core NATS and are captured by the
same stream, so that a restarted daemon knows what it said.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import nats
from anyio import Event, current_time, fail_after, move_on_after, sleep
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.api import StreamInfo as JetStreamInfo
from nats.js.errors import APIError, NotFoundError

from controlplane import clocks
from controlplane.core.model.commands import Command
from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.bus.node_stream import SIZES, is_as, node_stream
from controlplane.daemon.process.logs import logger
from controlplane.transport.authorization import FOR_TOOLS
from controlplane.transport.delivery import delivered
from controlplane.transport.nats_options import nats_options, refusal
from controlplane.transport.nats_url import redact
from controlplane.transport.subjects import (
    command_subject,
    event_subject,
    heartbeat_subject,
    status_subject,
    stream_name,
    tool_command_subject,
)
from controlplane.wire.codec import Heartbeat, encode_commands, encode_heartbeat

_CONNECT_TIMEOUT_S = 3.0
_LAST_ERRORS = 8
_NO_ROOM = frozenset({10023, 10047})  # insufficient resources, insufficient storage resources
_MADE_MEANWHILE = 10058  # by another daemon, not quite as we would: a fleet's begins elsewhere in nodes' streams
_MOST_RACES = 3  # of two daemons that begin together: one for each stream that both make
_MOST_WAITING = 32 << 20  # bytes of messages that were read and not applied
_MOST_AT_ONCE, _MOST_AT_ONCE_BYTES = 1024, 1 << 20  # messages that are taken together
_IDLE_HEARTBEAT_S = 2.0
_LOOK_S = 0.5
_DEAF_QUIETS = 3
_LOG_AGAIN_S = 60.0
# A server that says nothing is left within 15 s: a client's usual patience is minutes.
_LEAVES: dict[str, Any] = {"ping_interval": 5, "max_outstanding_pings": 2}
_AWAY = (NatsError, OSError, TimeoutError, RuntimeError)  # uvloop raises the last where a connection just closed
_NO_LEADER = 10008  # of a cluster, which elects one or waits for its servers; at first it says nothing at all
_START_S = 20.0  # within which a server that fails while we begin is back, or started again

_Answer = TypeVar("_Answer")


class _Unanswered(EngineUnavailable):
    """The server did not answer; it may yet."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the stream."""

    data: bytes
    sequence: int  # its position
    wall_ns: int  # when the server took it
    subject: str
    is_command: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """The stream as it is now. ``created`` tells a new one from the one a snapshot was taken of."""

    created: str
    first_sequence: int
    last_sequence: int


class Inbox:
    """Deliveries that wait for the daemon: as many as there is ``room`` for, the others wait in the stream."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._bytes = 0
        self._arrived = Event()
        self._taken = Event()

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        """Wait until no more than a bounded backlog waits; meanwhile the server's flow control stops the stream."""
        while self._bytes > _MOST_WAITING:
            self._taken = Event()
            await self._taken.wait()

    def put(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._bytes += len(delivery.data)
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[Delivery]:
        """The first that wait, as many as are applied at once; an empty list if nothing came in ``timeout_s``."""
        if not self._waiting:
            self._arrived = Event()
            with move_on_after(timeout_s):
                await self._arrived.wait()
        taken: list[Delivery] = []
        size = 0
        while self._waiting and len(taken) < _MOST_AT_ONCE and size < _MOST_AT_ONCE_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].data)
        self._bytes -= size
        self._taken.set()
        return taken


class Bus:
    """A connection that comes back by itself.

    ``quiet_s``: the stream is never silent for so long while it works, as the daemon samples its own host. After
    three times that ``revive`` is called, where there is one: a server whose disk was full keeps nothing until it
    is started again. Where there is none, a server that answers no ping for about as long is left, for another one
    of ``url`` or to be found anew. ``connect`` makes the client, and ``awake_s`` is the clock of all silence here.
    """

    def __init__(
        self,
        url: str,
        node: str,
        revive: Callable[[], None] | None = None,
        *,
        connect: Callable[..., Awaitable[Client]] = nats.connect,
        awake_s: Callable[[], float] = clocks.awake_s,
    ) -> None:
        self.url, self.node = url, node
        self._revive = revive
        self._connect, self._awake_s = connect, awake_s
        self.quiet_s = 5.0
        self.inbox = Inbox()
        self._client = Client()
        self._last_error = ""
        self._errors: deque[Exception] = deque(maxlen=_LAST_ERRORS)
        self._suppressed = 0  # errors since the last one that was logged
        self._logged_at_s = 0.0
        self._created = ""
        self._closing = False
        self._position = 0
        self._size = 0  # of the stream: which of the sizes
        self._last_seen_s = -math.inf  # when the stream delivered last
        self._began_s = 0.0  # when it was last read anew
        self._revived_s = 0.0
        self._subscription: Any = None
        self._command_subject = command_subject(node)
        self._tool_command_subject = tool_command_subject(node)
        self._renew = Event()
        self._log = logger("bus")

    async def connect(self) -> None:
        """Raises ``EngineUnavailable`` if nobody listens there."""
        connecting = self._connect(
            name=f"penstock-daemon-{self.node}",
            allow_reconnect=True,
            max_reconnect_attempts=-1,  # this holds for the first connection too, hence the limit below
            reconnect_time_wait=0.2,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            **({} if self._revive else _LEAVES),
            **nats_options(self.url),
        )
        within_s = _START_S if self._revive else _CONNECT_TIMEOUT_S  # ours is started again
        try:
            with fail_after(within_s):
                self._client = await connecting
        except (OSError, NatsError, TimeoutError) as error:
            why = refusal(self._errors) or str(error) or f"nothing within {within_s:g}s"
            raise EngineUnavailable(f"no NATS server answers at {redact(self.url)}: {why}") from None

    async def _on_error(self, error: Exception) -> None:
        """A server that is away is an error five times a second, and one line a minute."""
        self._errors.append(error)
        text, now_s = str(error) or type(error).__name__, current_time()
        if text == self._last_error and now_s - self._logged_at_s < _LOG_AGAIN_S:
            self._suppressed += 1
            return
        self._log.warning("error", error=text, **({"left_out_since": self._suppressed} if self._suppressed else {}))
        self._last_error, self._logged_at_s, self._suppressed = text, now_s, 0

    async def _on_disconnect(self) -> None:
        if not self._closing:
            self._log.warning("disconnected", url=redact(self.url))

    async def _on_reconnect(self) -> None:
        self._last_error = ""  # the next outage is told at once
        self._log.info("reconnected", url=redact(self.url))
        self._began_s = self._awake_s()
        self._renew.set()

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def delivers(self) -> bool:
        """Whether what is published comes back through the stream: a server that is there may keep nothing."""
        return self.silent_s < self.quiet_s

    @property
    def silent_s(self) -> float:
        """For how long nothing has come back; infinite without a connection. Telemetry asks in its own thread."""
        return self._awake_s() - self._last_seen_s if self._client.is_connected else math.inf

    def _quiet_for_s(self) -> float:
        """As long as that, but for the time before the stream was read: nothing could come then."""
        return self._awake_s() - max(self._last_seen_s, self._began_s)

    async def first_stream(self) -> StreamInfo:
        """``ensure_stream`` for a daemon that begins, whose server may fail just then."""
        return await self._persist(self.ensure_stream)

    async def ensure_stream(self) -> StreamInfo:
        """Make the node's stream, or bring an older one's settings up to date. Raises ``EngineUnavailable``."""
        name = stream_name(self.node)
        with self._translated_errors(f"no stream {name} at {redact(self.url)}"):
            info = await self._fitting_stream(name)
        self._created = str(info.created)
        return StreamInfo(
            created=self._created, first_sequence=info.state.first_seq, last_sequence=info.state.last_seq
        )

    async def _fitting_stream(self, name: str) -> JetStreamInfo:
        """Of the largest size that the server has room for; what fitted once is not tried larger again."""
        raced = 0
        while True:
            try:
                return await self._stream_of(name, SIZES[self._size])
            except APIError as error:
                if error.err_code == _MADE_MEANWHILE and raced < _MOST_RACES:
                    raced += 1
                    continue
                if error.err_code not in _NO_ROOM or self._size == len(SIZES) - 1:
                    raise
                self._size += 1
                mb = SIZES[self._size] >> 20
                self._log.warning("no room for the stream", error=str(error), action=f"making one of {mb} MB")

    async def _stream_of(self, name: str, max_bytes: int) -> JetStreamInfo:
        return await self.stream_as(self._client.jetstream(), node_stream(self.node, max_bytes))

    async def stream_as(self, jetstream: JetStreamContext, config: StreamConfig) -> JetStreamInfo:
        """The stream with these settings, made or changed where it is not so. Raises nats' errors."""
        try:
            known = await jetstream.stream_info(str(config.name))
        except NotFoundError:
            return await jetstream.add_stream(config)
        if is_as(config, known.config):  # a full disk takes no change, not even to what it is
            return known
        return await jetstream.update_stream(config)

    async def read_from(self, sequence: int) -> None:
        """Deliver the stream into the inbox, beginning with ``sequence``. Raises ``EngineUnavailable``."""
        self._position = sequence - 1

        async def subscribe() -> None:
            with self._translated_errors(f"stream {stream_name(self.node)} cannot be read"):
                await self._subscribe()

        await self._persist(subscribe)
        self._began_s = self._awake_s()

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except NoRespondersError:
            raise EngineUnavailable(f"JetStream is off at {redact(self.url)}: start nats-server with -js") from None
        except APIError as error:  # an answer: somebody deleted the stream just now, say
            kind = _Unanswered if error.err_code == _NO_LEADER else EngineUnavailable
            raise kind(f"{what}: {error}") from None
        except NatsError as error:
            raise _Unanswered(f"{what}: {error}") from None

    async def _persist(self, attempt: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Until it is answered, for a while: a server that was killed or frozen may be on its way back."""
        until_s = self._awake_s() + _START_S
        while True:
            try:
                return await attempt()
            except _Unanswered as error:
                if self._awake_s() >= until_s:
                    raise
                await self._on_error(EngineUnavailable(f"not started yet: {error}"))
                self._revive_the_deaf()
                await sleep(0.2)

    async def _subscribe(self) -> None:
        if self._subscription is not None:
            with suppress(*_AWAY):
                await self._subscription.unsubscribe()
        self._subscription = await self._client.jetstream().subscribe(
            "",
            stream=stream_name(self.node),
            cb=self._on_message,
            ordered_consumer=True,
            idle_heartbeat=_IDLE_HEARTBEAT_S,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=max(1, self._position + 1)
            ),
        )

    async def _on_message(self, message: Msg) -> None:
        metadata = message.metadata
        sequence = metadata.sequence.stream
        if sequence <= self._position:
            return  # delivered again after a renewal
        await self.inbox.room()
        self._position = sequence
        self._last_seen_s = self._awake_s()
        self.inbox.put(
            Delivery(
                message.data,
                sequence,
                round(metadata.timestamp.timestamp() * 1e9),
                message.subject,
                message.subject == self._command_subject,
            )
        )

    async def keep_reading(self, on_new_stream: Callable[[StreamInfo], None]) -> None:
        """After each reconnect, and when nothing comes any more, go on where we were.

        A stream that is not the one we read, or lacks what we read, is told to the caller.
        """
        while True:
            await self._until_renewed()
            try:
                before = self._created
                info = await self.ensure_stream()
                if info.created != before or info.last_sequence < self._position:
                    # What it still has of the one that we read, we have: read again it would revive who is gone.
                    self._position = 0 if info.created != before else info.last_sequence
                    on_new_stream(info)
                await self._subscribe()
            except (*_AWAY, EngineUnavailable) as error:
                await self._on_error(EngineUnavailable(f"not reading yet: {error or type(error).__name__}"))
                self._revive_the_deaf()
                await sleep(0.2)
                self._renew.set()

    async def _until_renewed(self) -> None:
        """Wait for a reconnect, or for the stream to have been silent for too long since it was read last."""
        asked_s = self._awake_s()
        while not self._renew.is_set():
            with move_on_after(_LOOK_S):
                await self._renew.wait()
            waited_s = self._awake_s() - asked_s
            if self._client.is_connected and not self.delivers and waited_s >= self.quiet_s:
                self._log.warning("nothing comes back", for_s=round(self._quiet_for_s(), 1), action="reading anew")
                self._revive_the_deaf()
                break
        self._renew = Event()

    def _revive_the_deaf(self) -> None:
        deaf_s = _DEAF_QUIETS * self.quiet_s
        if self._revive is None or min(self._quiet_for_s(), self._awake_s() - self._revived_s) < deaf_s:
            return
        self._revived_s = self._awake_s()
        self._revive()

    async def send(self, commands: Sequence[Command]) -> None:
        """To gates and engines, in this order; what is for agents' hooks to those, too."""
        if not commands:
            return
        await self._publish(self._command_subject, encode_commands(commands))
        if for_tools := [command for command in commands if isinstance(command, FOR_TOOLS)]:
            await self._publish(self._tool_command_subject, encode_commands(for_tools))

    async def beat(self, heartbeat: Heartbeat) -> None:
        await self._publish(heartbeat_subject(self.node), encode_heartbeat(heartbeat))

    async def publish_events(self, role: str, batch: bytes) -> None:
        await self._publish(event_subject(self.node, role), batch)

    async def relay_events(self, role: str, batch: bytes) -> bool:
        """Somebody else's batch; whether the server has it."""
        if not self._client.is_connected:
            return False
        try:
            await self._client.publish(event_subject(self.node, role), batch)
            await delivered(self._client, timeout_s=1)
        except _AWAY:
            return False
        return True

    async def publish_status(self, status: bytes) -> None:
        await self._publish(status_subject(self.node), status)

    async def _publish(self, subject: str, data: bytes) -> None:
        # While the server is away a late command would be worse than a lost one: gates ask again.
        if self._client.is_connected:
            with suppress(*_AWAY):
                await self._client.publish(subject, data)

    async def another_daemon(self) -> str:
        """The status of a daemon that serves this node already, or an empty string."""
        try:
            reply = await self._client.request(status_subject(self.node), b"", timeout=0.5)
        except (NatsError, TimeoutError):
            return ""
        return bytes(reply.data).decode(errors="replace")

    async def answer_status(self, answer: Callable[[bytes], bytes | None]) -> None:
        """Answer status requests from now on; None leaves one to another daemon."""

        async def reply(message: Msg) -> None:
            if message.reply and (answered := answer(message.data)) is not None:
                if (size := len(answered)) > (most := self._client.max_payload):
                    text = f"the answer has {size} bytes, the bus carries {most}: ask the control API, page by page"
                    answered = msgspec.json.encode({"error": text})
                await message.respond(answered)

        await self._client.subscribe(status_subject(self.node), cb=reply)

    async def flush(self) -> None:
        with suppress(*_AWAY):
            await delivered(self._client, timeout_s=1)

    async def close(self) -> None:
        self._closing = True
        with suppress(*_AWAY):
            await self._client.close()
