"""The emitter's thread: connects, sends batches, hears commands.

nats-py's own reconnect is off: it would keep the address it was given, and its buffer loses what was written
to a dying socket. Here a batch stays until the server answers a ping that was sent after it; what is not
answered is sent again on the next connection. A reader tells duplicates by (publisher, sequence).
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from controlplane.core.model.commands import Command, StateRequest
from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.events import Event, PublisherState
from controlplane.core.model.places import kind_of
from controlplane.core.model.state_parts import in_parts
from controlplane.emit.batching import Numbered, Packed, pack, runs
from controlplane.emit.resend_buffer import ResendBuffer, restated
from controlplane.emit.runtime import Runtime
from controlplane.emit.stats import EmitterStats
from controlplane.transport import subjects
from controlplane.transport.delivery import delivered
from controlplane.transport.nats_url import redact

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from controlplane.emit.socket_client import SocketClient
    from controlplane.wire.heartbeat import Heartbeat

    Connection = Client | SocketClient

_T = TypeVar("_T")
_BATCH = 256  # events at most
_BATCHES_AT_ONCE = 16
_IDLE_ROUNDS = 20  # of linger_s, before the thread must be woken: waking costs the hook 6 us
_CONFIRM_TIMEOUT_S = 3
_CONNECT_TIMEOUT_S = 2
_CLOSE_TIMEOUT_S = 0.5
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 2.0
_SAME_REQUEST_NS = 500_000_000  # what the daemon asks and a heartbeat that tells of it may take so differently long


class StateMark:
    """A place in the queue where the publisher's state goes: taken when the queue comes to it.

    So every event before it is in the state; those after it may be too, and a reader takes them twice
    without harm. The other way round, a turn that ended in between would stay open for ever.
    """


Queued = tuple[int, Event | StateMark]  # (at_ns, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """The emitter's parameters; see ``Emitter``."""

    url: Callable[[], str]
    node: str
    role: str
    linger_s: float
    on_command: Callable[[Command], None] | None
    on_heartbeat: "Callable[[Heartbeat], None] | None"
    state: Callable[[], PublisherState] | None
    connect_options: dict[str, Any]
    runtime: Runtime


class PublisherLoop:
    """Moves ``queue`` to the bus. ``dropped`` tells how many events left the queue unsent so far.

    ``sleeping`` means that the next event must call ``wake``, ``hurried`` that an urgent event has already done so.
    ``dead`` means that the libraries are missing, so nothing will ever be sent. ``tried`` is set once an attempt to
    connect has begun or failed: until then whoever waits for the thread waits for its imports, not for a server.
    """

    def __init__(
        self, options: LoopOptions, publisher: str, queue: deque[Queued], dropped: Callable[[], int]
    ) -> None:
        self.counters = EmitterStats()
        self.sleeping = False
        self.hurried = False
        self.dead = False
        self.tried = threading.Event()
        self._options = options
        self._publisher = publisher
        self._queue = queue
        self._dropped = dropped
        self._taken = 0
        self._unconfirmed: list[Packed] = []
        self._is_tool = kind_of(options.role) == subjects.TOOL_ROLE
        self._confirmed = ResendBuffer()  # kept by agents' hooks alone: what others hold their states tell
        self._again_from_ns: int | None = None
        self._asked_ns = self._beat_ns = options.runtime.now_ns()  # when all were last asked, the last heartbeat
        self._confirming: asyncio.Task[None] | None = None
        self._closing = False
        self._close_by_ns = 0
        self._now_ns = options.runtime.now_ns
        self._loop = options.runtime.loop()
        self._kick = asyncio.Event()

    # Called by other threads.

    def wake(self) -> None:
        """Make the thread check the queue now."""
        self.sleeping = False
        self._loop.call_soon_threadsafe(self._kick.set)

    def finish(self, timeout_s: float) -> None:
        """Send what is queued, then end; give up after ``timeout_s``."""
        self._close_by_ns = self._now_ns() + round(timeout_s * 1e9)
        self._closing = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self.wake()

    # The thread.

    def run(self) -> None:
        """Run the thread's whole life. Never raises."""
        try:
            self._loop.run_until_complete(self.live())
        finally:
            self.tried.set()
            with contextlib.suppress(Exception):
                for task in asyncio.all_tasks(self._loop):
                    task.cancel()
                self._loop.run_until_complete(asyncio.sleep(0))
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def live(self) -> None:
        """Connect and send until the emitter closes. Never raises; after an error it begins anew."""
        while True:
            try:
                return await self._main()
            except ImportError as error:
                self._fail(f"nothing will be sent: {error}; pip install penstock-agents")
                self.dead = True
                return None
            except Exception as error:
                self._fail(f"the emitter began anew: {error!r}")
            finally:
                self.counters.connected = False
            if self._closing:
                return None
            await self._pause(_BACKOFF_LAST_S)

    def _fail(self, text: str) -> None:
        self.counters.last_error = text

    async def _main(self) -> None:
        import controlplane.wire.codec  # noqa: F401  here: importing the emitter needs the standard library only

        backoff_s = _BACKOFF_FIRST_S
        while True:
            client = await self._connect()
            if client is not None:
                backoff_s = _BACKOFF_FIRST_S
                try:
                    await self._serve(client)
                finally:
                    self.counters.connected = False
                    await _hang_up(client)
            if self._closing and (client is None or self._is_empty() or self._time_is_up()):
                return
            await self._pause(backoff_s * self._options.runtime.uniform(0.5, 1.0))
            backoff_s = min(_BACKOFF_LAST_S, 2 * backoff_s)

    async def _pause(self, duration_s: float) -> None:
        """Wait, unless the emitter closes. The queue fills meanwhile without waking anyone."""
        deadline_s = self._loop.time() + duration_s
        while not self._closing and (left_s := deadline_s - self._loop.time()) > 0:
            self._kick.clear()
            timer = self._loop.call_later(left_s, self._kick.set)
            await self._kick.wait()
            timer.cancel()

    def _is_empty(self) -> bool:
        return not self._queue and not self._unconfirmed

    def _time_is_up(self) -> bool:
        return self._now_ns() >= self._close_by_ns

    async def _connect(self) -> "Connection | None":
        causes: list[Exception] = []

        async def on_error(error: Exception) -> None:
            causes.append(error)
            if self.counters.connected:  # else it is told below, with the address
                self._fail(str(error) or repr(error))

        address = "?"
        client: Connection | None = None
        try:
            address = self._options.url()
            client, connecting = self._dial(address, on_error)
            self.tried.set()
            await asyncio.wait_for(connecting, 2 * _CONNECT_TIMEOUT_S)
            await self._subscribe(client)
        except ImportError:
            raise
        except Exception as error:  # also whatever the caller's url and connect_options bring about
            self.tried.set()
            from controlplane.transport.nats_options import refusal

            why = refusal(causes or [error])  # the last one only says that no server is left
            self._fail(f"cannot connect to {redact(address)}: {why}")
            if client is not None:
                await _hang_up(client)
            return None
        self.counters.connected = True
        self.counters.connections += 1
        if self.counters.connections > 1 and not self.counters.direct:  # the daemon's socket asks by itself
            self._restate_open_tools()
        return client

    def _dial(
        self, address: str, on_error: Callable[[Exception], Awaitable[None]]
    ) -> "tuple[Connection, Awaitable[None]]":
        """Make a client and its connection. ``unix:PATH`` is the daemon's socket; other URLs are NATS servers."""
        from controlplane.emit.socket_client import SocketClient
        from controlplane.wire.frames import SOCKET_SCHEME

        if address.startswith(SOCKET_SCHEME):
            self.counters.direct = True
            socket = SocketClient(self._fail, self._on_closed, self._on_commands)
            return socket, socket.connect(address.removeprefix(SOCKET_SCHEME))
        from controlplane.transport.nats_options import nats_options

        self.counters.direct = False
        client = self._options.runtime.client()
        options = {
            "name": f"penstock {self._publisher}",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,  # or connect itself would try the same address 60 times
            "reconnect_time_wait": 0,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "ping_interval": 5,
            "error_cb": on_error,
            "closed_cb": self._on_closed,
            **nats_options(address),
            **self._options.connect_options,
        }
        return client, client.connect(**options)

    async def _on_closed(self) -> None:
        self.counters.connected = False
        self._kick.set()
        if self._confirming is not None:  # else it would wait for its whole timeout
            self._confirming.cancel()

    async def _subscribe(self, client: "Connection") -> None:
        if self._options.on_command is not None or self._options.state is not None:
            subject = subjects.tool_command_subject if self._is_tool else subjects.command_subject
            await client.subscribe(subject(self._options.node), cb=self._on_commands)
        if self._options.on_heartbeat is not None or self._is_tool:
            await client.subscribe(subjects.heartbeat_subject(self._options.node), cb=self._on_heartbeat)
        await delivered(client, _CONFIRM_TIMEOUT_S)

    # Sending.

    async def _serve(self, client: "Connection") -> None:
        """Send until the connection or the emitter ends. Never raises."""
        idle_rounds = 0
        try:
            while not client.is_closed:
                self.hurried = False
                if not self._unconfirmed:
                    self._resend()
                    self._take(client.max_payload)
                if self._unconfirmed:
                    await self._send(client)
                    idle_rounds = 0
                elif self._closing:
                    return
                else:
                    if idle_rounds >= _IDLE_ROUNDS:
                        await self._sleep()
                    await self._linger()
                    idle_rounds += 1
        except Exception as error:  # whatever it is, a new connection is the cure
            self._fail(f"disconnected: {str(error) or type(error).__name__}")

    async def _sleep(self) -> None:
        self._kick.clear()
        self.sleeping = True
        if not (self._queue or self._closing or self.hurried):
            await self._kick.wait()
        self.sleeping = False

    async def _linger(self) -> None:
        """Let a batch gather, unless somebody is in a hurry."""
        self._kick.clear()
        timer = self._loop.call_later(self._options.linger_s, self._kick.set)
        if not (self._closing or self.hurried):
            await self._kick.wait()
        timer.cancel()

    def _resend(self) -> None:
        """Send again what may be lost, under its old numbers, so that a reader that has it drops it."""
        if self._again_from_ns is not None:
            self._unconfirmed += self._confirmed.take_since(self._again_from_ns)
            self._again_from_ns = None

    def _take(self, max_bytes: int) -> None:
        """Move some of the queue to ``_unconfirmed``, numbered and encoded."""
        from controlplane.wire.codec import encode_events

        encode = partial(encode_events, self._publisher)
        for run in runs(self._numbered(_BATCHES_AT_ONCE * _BATCH, max_bytes), _BATCH):
            packed, rejected = pack(run, encode, max_bytes)
            self._unconfirmed += packed
            if rejected:
                self.counters.rejected += len(rejected)
                self._fail(rejected[-1])

    def _numbered(self, limit: int, max_bytes: int) -> "list[Numbered]":
        """Take up to ``limit`` events. An event's number counts those that were dropped before it.

        A state of more than ``max_bytes`` is taken in parts, so that it arrives.
        """
        items: list[Numbered] = []
        queue = self._queue
        while queue and len(items) < limit:
            try:
                at_ns, event = queue.popleft()
            except IndexError:  # an emitting thread dropped the last one
                break
            if isinstance(event, StateMark):
                state = self._state_now()
                if state is None:
                    continue
                at_ns, event = self._now_ns(), state
            events = in_parts(event, max_bytes // 2) if isinstance(event, PublisherState) else (event,)
            for one in events:
                self._taken += 1
                items.append((self._taken + self._dropped(), at_ns, one))
        return items

    async def _send(self, client: "Connection") -> None:
        subject = subjects.event_subject(self._options.node, self._options.role)
        batches = [packed for packed in self._unconfirmed if len(packed.data) <= client.max_payload]
        if len(batches) < len(self._unconfirmed):  # packed for another server, which took more
            lost = sum(packed.events for packed in self._unconfirmed if len(packed.data) > client.max_payload)
            self.counters.rejected += lost
            self._fail(f"{lost} events in batches larger than the {client.max_payload} bytes of this server")
            self._unconfirmed = batches
        for packed in batches:
            await client.publish(subject, packed.data)
        await self._confirm(client)
        self.counters.sent += sum(packed.events for packed in batches)
        self.counters.batches += len(batches)
        if self._is_tool:
            self._confirmed.add(batches, self._now_ns())
        self._unconfirmed = []

    async def _confirm(self, client: "Connection") -> None:
        """Wait until the server has read all that was published. Raises if the connection ends first."""
        self._confirming = asyncio.ensure_future(delivered(client, _CONFIRM_TIMEOUT_S))
        try:
            await self._confirming
        except asyncio.CancelledError:
            raise ConnectionError("the connection closed") from None
        finally:
            self._confirming = None

    # Hearing.

    async def _on_commands(self, message: "Msg") -> None:
        from controlplane.wire.codec import decode_commands

        for command in self._decoded(decode_commands, message) or ():
            if isinstance(command, StateRequest):
                self._asked(command)
            if isinstance(command, StateRequest) and self._options.state is not None:
                continue
            if self._options.on_command is not None:
                self._call("on_command", self._options.on_command, command)

    def _asked(self, request: StateRequest) -> None:
        """Answer the daemon's request: send again what may be lost, then the state."""
        now_ns = self._now_ns()
        if request.publisher == "":
            self._asked_ns = now_ns
        if request.publisher in ("", self._publisher):
            self._answer(now_ns - request.lost_ns if request.lost_ns > 0 else None)

    def _answer(self, lost_from_ns: int | None) -> None:
        if self._is_tool and lost_from_ns is not None:
            again_ns = self._again_from_ns
            self._again_from_ns = lost_from_ns if again_ns is None else min(again_ns, lost_from_ns)
        if self._options.state is not None:
            self._queue.append((0, StateMark()))
        self.hurried = True
        self._kick.set()

    def _restate_open_tools(self) -> None:
        """Agents' hooks may have been taken for gone while they were away, and have nothing to say for long.

        No state: that would settle what is missing, and words from then that are yet to be asked for be duplicates.
        """
        if self._is_tool and (state := self._state_now()) is not None:
            self._queue.extend((self._now_ns(), restated(call)) for call in state.open_tools)

    def _answer_missed_request(self, heartbeat: "Heartbeat") -> None:
        """Everybody was asked while agents' hooks were away: they answer as soon as they hear of it.

        It may have been asked several times since the last heartbeat that they heard, of which this one tells the
        last.
        """
        now_ns, before_ns = self._now_ns(), self._beat_ns
        asked_ns, self._beat_ns = now_ns - heartbeat.asked_ago_ns, now_ns
        if self._is_tool and heartbeat.lost_ns > 0 and asked_ns > self._asked_ns + _SAME_REQUEST_NS:
            self._asked_ns = now_ns
            self._answer(min(asked_ns, before_ns) - heartbeat.lost_ns)

    async def _on_heartbeat(self, message: "Msg") -> None:
        from controlplane.wire.codec import decode_heartbeat

        if (heartbeat := self._decoded(decode_heartbeat, message)) is None:
            return
        self._answer_missed_request(heartbeat)
        if self._options.on_heartbeat is not None:
            self._call("on_heartbeat", self._options.on_heartbeat, heartbeat)

    def _decoded(self, decode: Callable[[bytes], _T], message: "Msg") -> _T | None:
        try:
            return decode(message.data)
        except ControlPlaneError as error:
            self.counters.malformed += 1
            self._fail(str(error))
            return None

    def _call(self, name: str, callback: Callable[..., Any], *values: object) -> Any:
        """Call foreign code, which must not end this thread."""
        try:
            return callback(*values)
        except Exception as error:
            self.counters.callback_errors += 1
            self._fail(f"{name} raised {error!r}")
            return None

    def _state_now(self) -> PublisherState | None:
        if self._options.state is None:
            return None
        state = self._call("state", self._options.state)
        if state is None or isinstance(state, PublisherState):
            return state
        self.counters.callback_errors += 1
        self._fail(f"state returned {type(state).__name__}, not a PublisherState")
        return None


async def _hang_up(client: "Connection") -> None:
    """Close the connection without waiting for a server that does not read."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)
