"""A model of nats-py's client over a model server: as much of it as the daemon's bus and the emitters use.

Like nats-py 2.16 it writes what is published a step later, and a PING at once; a subscription has a task of its
own; and a client that reconnects subscribes anew and sends what it kept.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from nats.errors import ConnectionClosedError, NoRespondersError, NoServersError
from nats.errors import TimeoutError as NatsTimeout

from .model_nats import Link, Server, Stored
from .threads import ThreadLoop

_REFUSED_S = 0.002
_API_TIMEOUT_S = 5.0
_PINGS_OUTSTANDING = 2


class Client:
    """``base_s`` is the usual time of a message's way, in seconds. Faults know the connection by its ``name``."""

    def __init__(self, server: Server, thread: ThreadLoop, base_s: float, name: str) -> None:
        self.server, self.thread, self.name = server, thread, name
        self.inbox = f"_INBOX.{server.new_number()}."
        self.max_payload = 1 << 20
        self.is_closed = False
        self.slow_s = 0.0  # how much longer each message takes, on whichever connection
        self.told: Callable[[str, bytes], None] = lambda subject, data: None  # what is published, before it is lost
        self._base_s = base_s
        self._link: Link | None = None
        self._pending: deque[tuple[str, bytes, str]] = deque()
        self._subscriptions: dict[int, tuple[str, asyncio.Queue[Any]]] = {}
        self._consuming: dict[int, asyncio.Queue[Any]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._replies: dict[str, asyncio.Future[bytes | None]] = {}
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._count = 0
        self._options: dict[str, Any] = {}

    # Connecting

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_up and not self.is_closed

    @property
    def pending_data_size(self) -> int:
        return sum(len(data) for _, data, _ in self._pending)

    async def connect(self, servers: list[str], **options: Any) -> None:
        self._options = options
        while True:
            await asyncio.sleep(_REFUSED_S)
            self._link = self.server.connect(self, self._base_s)
            if self._link is not None:
                self._link.slow_s = self.slow_s
                self._spawn(self._ping())
                return
            await self._call("error_cb", ConnectionRefusedError("Connect call failed"))
            if options.get("max_reconnect_attempts", -1) >= 0:
                raise NoServersError
            await asyncio.sleep(options["reconnect_time_wait"])

    def lost(self, link: Link) -> None:
        """The connection broke."""
        if link is self._link and not self.is_closed:
            self._spawn(self._lost())

    async def _lost(self) -> None:
        self._link = None
        if not self._options.get("allow_reconnect", True):
            await self.close()
            return
        await self._call("disconnected_cb")
        while not self.is_closed:
            await asyncio.sleep(self._options["reconnect_time_wait"])
            link = self.server.connect(self, self._base_s)
            if link is None:
                await self._call("error_cb", ConnectionRefusedError("Connect call failed"))
                continue
            self._link, link.slow_s = link, self.slow_s
            for number, (subject, _) in self._subscriptions.items():
                link.up(partial(link.subscriptions.__setitem__, number, subject))
            self._write()
            self._spawn(self._ping())
            await self._call("reconnected_cb")
            return

    async def _ping(self) -> None:
        """Notice a connection that nothing comes over any more."""
        link, every_s = self._link, self._options.get("ping_interval", 120)
        unanswered: deque[asyncio.Future[None]] = deque()
        while link is self._link and link is not None and link.is_up:
            await asyncio.sleep(every_s)
            while unanswered and unanswered[0].done():
                unanswered.popleft()
            if len(unanswered) >= _PINGS_OUTSTANDING:
                link.cut()
                return
            unanswered.append(self._pong(link))

    def drop(self) -> None:
        """Its process was killed: the server sees the connection end, and the process nothing."""
        self.is_closed = True
        link, self._link = self._link, None
        if link is not None:
            link.is_up = False
            self.server.links.discard_link(link)

    def cut(self) -> None:
        """Break the connection."""
        if self._link is not None:
            self._link.cut()

    def be_slow(self, slow_s: float) -> None:
        """Each message takes so much longer from now on."""
        self.slow_s = slow_s
        if self._link is not None:
            self._link.slow_s = slow_s

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._link is not None:
            link, self._link = self._link, None
            link.is_up = False
            self.server.links.discard_link(link)
        me = asyncio.current_task()
        for task in list(self._tasks):
            if task is not me:
                task.cancel()
        await self._call("disconnected_cb")
        await self._call("closed_cb")

    # Messages

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if self.is_closed:
            raise ConnectionClosedError
        self.told(subject, data)
        self._pending.append((subject, data, reply))
        if len(self._pending) == 1:
            self.thread.call_soon(self._write)

    def _write(self) -> None:
        link = self._link
        while self._pending and link is not None and link.is_up:
            subject, data, reply = self._pending.popleft()
            link.up(lambda s=subject, d=data, r=reply: self.server.publish(link, s, d, r))  # type: ignore[misc]

    async def flush(self, timeout: float = 10) -> None:
        """A PING, ahead of what was not written yet, and its PONG."""
        if self.is_closed or self._link is None:
            raise ConnectionClosedError
        await self._within(self._pong(self._link), timeout)

    def _pong(self, link: Link) -> "asyncio.Future[None]":
        pong: asyncio.Future[None] = self.thread.create_future()
        link.up(lambda: link.down(lambda: None if pong.done() else pong.set_result(None)))
        return pong

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> Any:
        if self.is_closed:
            raise ConnectionClosedError
        number, queue = self._numbered(cb)
        self._subscriptions[number] = (subject, queue)
        link = self._link
        if link is not None:
            link.up(lambda: link.subscriptions.__setitem__(number, subject))
        return SimpleNamespace(unsubscribe=lambda: self._unsubscribe(number))

    def _numbered(self, cb: Callable[[Any], Awaitable[None]]) -> tuple[int, "asyncio.Queue[Any]"]:
        self._count += 1
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._spawn(self._consume(queue, cb))
        return self._count, queue

    async def _consume(self, queue: "asyncio.Queue[Any]", cb: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            message = await queue.get()
            try:
                await cb(message)
            except Exception as error:
                await self._call("error_cb", error)

    async def _unsubscribe(self, number: int) -> None:
        self._subscriptions.pop(number, None)
        self._consuming.pop(number, None)
        link = self._link
        if link is not None:
            link.up(partial(link.subscriptions.pop, number, None))
            link.up(partial(link.consumers.pop, number, None))

    def message(self, number: int, subject: str, data: bytes, reply: str, stored: Stored | None) -> None:
        """One arrived."""
        queue = self._consuming.get(number) or self._subscriptions.get(number, ("", None))[1]
        if queue is None:
            return
        metadata = None
        if stored is not None:
            taken = datetime.fromtimestamp(stored.wall_ns / 1e9, tz=UTC)
            metadata = SimpleNamespace(sequence=SimpleNamespace(stream=stored.sequence), timestamp=taken)

        async def respond(answer: bytes) -> None:
            link = self._link
            if link is not None:
                link.up(lambda: self.server.respond(reply, answer))

        queue.put_nowait(
            SimpleNamespace(subject=subject, data=data, reply=reply, metadata=metadata, respond=respond)
        )

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 0.5) -> Any:
        self._count += 1
        inbox, future = f"{self.inbox}{self._count}", self.thread.create_future()
        self._replies[inbox] = future
        try:
            await self.publish(subject, payload, inbox)
            data = await self._within(future, timeout)
        finally:
            del self._replies[inbox]
        if data is None:
            raise NoRespondersError
        return SimpleNamespace(data=data)

    def answered(self, inbox: str, data: bytes | None) -> None:
        future = self._replies.get(inbox)
        if future is not None and not future.done():
            future.set_result(data)

    # JetStream

    def jetstream(self) -> "JetStream":
        return JetStream(self)

    async def ask(self, question: Callable[[Link], Any]) -> Any:
        """Have the server do something and answer, or raise."""
        link = self._link
        if self.is_closed:
            raise ConnectionClosedError
        future = self.thread.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def at_the_server() -> None:
            assert link is not None
            try:
                result, problem = question(link), None
            except Exception as error:
                result, problem = None, error
            link.down(lambda: settle(result, problem))

        if link is not None:
            link.up(at_the_server)
        return await self._within(future, _API_TIMEOUT_S)

    async def consume(self, stream: str, first: int, cb: Callable[[Any], Awaitable[None]]) -> Any:
        number, queue = self._numbered(cb)
        self._consuming[number] = queue
        await self.ask(lambda link: self.server.consume(link, number, stream, first))
        return SimpleNamespace(unsubscribe=lambda: self._unsubscribe(number))

    # Small things

    async def _within(self, future: "asyncio.Future[Any]", timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise NatsTimeout from None

    async def _call(self, name: str, *values: object) -> None:
        callback = self._options.get(name)
        if callback is not None:
            with suppress(Exception):
                await callback(*values)

    def _spawn(self, work: Any) -> None:
        task = self.thread.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


class JetStream:
    """The calls that the bus makes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def stream_info(self, name: str) -> Any:
        return await self._client.ask(lambda link: self._client.server.info(name))

    async def add_stream(self, config: Any) -> Any:
        return await self._client.ask(lambda link: self._client.server.make(config))

    async def update_stream(self, config: Any) -> Any:
        return await self.add_stream(config)

    async def subscribe(self, subject: str, *, stream: str, cb: Any, config: Any, **options: Any) -> Any:
        return await self._client.consume(stream, config.opt_start_seq, cb)
