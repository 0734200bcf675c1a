"""What strangers can take of a listener: each bound broken over real sockets, while an honest client is served."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from controlplane import clocks
from controlplane.wire import listener as module
from controlplane.wire.bounds import Bounds, Reason
from controlplane.wire.http_listener import HttpListener
from controlplane.wire.listener import Connection, Listener

BOUNDS = Bounds(
    connections=8,
    by_peer=8,
    reserved=2,
    request_s=1.0,
    body_s=1.0,
    idle_s=1.0,
    unread_s=1.0,
    send_buffer=1 << 13,
)
KEY = "Authorization: Bearer key\r\n"
WITHIN_S = 60.0
LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Served:
    """An application behind a listener, and what is asked of it."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.warned: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()
        app = web.Application(client_max_size=1 << 24)
        app.add_routes(
            [
                web.get("/", self._quick),
                web.post("/", self._quick),
                web.get("/busy", self._busy),
                web.get("/stream", self._stream),
            ]
        )
        self.http = HttpListener(
            "test",
            app,
            bounds,
            lambda _, **fields: self.warned.append(fields),
            is_operator=lambda request: request.headers.get("Authorization") == "Bearer key",
            shutdown_timeout=0.1,
        )
        self.listener = self.http.listener
        self.port = 0
        self.clients: list[socket.socket] = []

    async def _quick(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def _busy(self, _: web.Request) -> web.Response:
        await self.go_on.wait()
        return web.Response()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)
            await asyncio.sleep(0)

    async def connect(self, data: bytes = b"", receives: int = 0) -> socket.socket:
        sock = socket.socket()
        self.clients.append(sock)
        sock.setblocking(False)
        if receives:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self.port))
        with suppress(ConnectionError):
            await loop.sock_sendall(sock, data)
        return sock

    async def status(self, path: str = "/", headers: str = "") -> int:
        """Of one request of a new client; 0: it was hung up on."""
        return await status_in(await self.connect(f"GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode()))


async def status_in(sock: socket.socket) -> int:
    """Of the answer that comes next; 0: it was hung up on."""
    with suppress(ConnectionError):
        if answer := await asyncio.get_running_loop().sock_recv(sock, 1 << 12):
            return int(answer.split()[1])
    return 0


@asynccontextmanager
async def served(bounds: Bounds = BOUNDS) -> AsyncIterator[Served]:
    self = Served(bounds)
    _, self.port = await self.http.start("127.0.0.1", 0)
    try:
        yield self
    finally:
        self.go_on.set()
        await self.http.stop()
        for client in self.clients:
            client.close()
        assert self.listener.open == 0


def on(new_loop: Callable[[], asyncio.AbstractEventLoop], story: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        clocks.tick_in(runner.get_loop())
        runner.run(asyncio.wait_for(story(), WITHIN_S))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  counts have no event
        await asyncio.sleep(0.01)


async def trickle(sock: socket.socket) -> None:
    with suppress(ConnectionError):
        while True:
            await asyncio.get_running_loop().sock_sendall(sock, b"x")
            await asyncio.sleep(0.05)


SLOW = {
    "silent": (b"", 408),
    "half a head": (b"GET / HTTP/1.1\r\nX: ", 408),
    "a trickled body": (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n", 408),
    "silent after a request": (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 200),
    "a second head by bytes": (b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nX: ", 200),
}


@LOOPS
@pytest.mark.parametrize("form", SLOW)
def test_who_is_slow_is_hung_up_on_and_locks_nobody_out(
    form: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def story() -> None:
        begun, answered = SLOW[form]
        async with served() as it:
            clients = [await it.connect(begun) for _ in range(50)]
            assert await it.status() == 200
            assert it.listener.open <= BOUNDS.connections + BOUNDS.reserved
            answer = asyncio.create_task(status_in(clients[-1]))
            slow = [asyncio.create_task(trickle(sock)) for sock in clients if not form.startswith("silent")]
            await until(lambda: it.listener.open == 0)
            assert await answer == answered
            await asyncio.gather(*slow)
            assert it.listener.counts[Reason.DISPLACED] >= 50 - BOUNDS.connections - BOUNDS.reserved
            assert len(it.warned) == 1

    on(new_loop, story)


@LOOPS
def test_who_has_the_key_comes_in_when_strangers_are_busy_everywhere(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        async with served() as it:
            busy = [asyncio.create_task(it.status("/busy")) for _ in range(BOUNDS.connections)]
            await until(lambda: it.listener.open == BOUNDS.connections)
            for _ in range(10):  # in the operator's places
                await it.connect()
            assert await it.status() == 503
            assert await it.status(headers=KEY) == 200
            it.go_on.set()
            assert await asyncio.gather(*busy) == [200] * len(busy)

    on(new_loop, story)


@LOOPS
def test_who_reads_nothing_is_hung_up_on(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """What waits in the kernel counts, too: there it is, before the stream's own buffer has anything."""

    async def story() -> None:
        async with served() as it:
            asked = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"
            await it.connect(asked, receives=1 << 12)
            reads = await it.connect(asked)
            while not it.listener.counts[Reason.UNREAD]:
                assert await asyncio.get_running_loop().sock_recv(reads, 1 << 16), "who reads stays"
            assert it.listener.open == 1

    on(new_loop, story)


@LOOPS
def test_bodies_under_way_hold_so_much_memory_at_most(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def story() -> None:
        async with served(replace(BOUNDS, arrived_bytes=1 << 20, body_s=WITHIN_S)) as it:
            head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n"
            for _ in range(4):
                await it.connect(head + b"x" * 400_000)
            await until(lambda: it.listener.counts[Reason.LARGE] >= 1)
            assert await it.status() == 200

    on(new_loop, story)


@LOOPS
def test_time_in_which_the_process_stood_still_counts_for_nobody(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        async with served(replace(BOUNDS, request_s=5.0)) as it:
            client = await it.connect(b"GET / HTTP/1.1\r\n")
            await until(lambda: it.listener.open == 1)
            time.sleep(8)  # noqa: ASYNC251  as a process that is stopped
            await asyncio.sleep(0.1)
            client.sendall(b"Host: h\r\n\r\n")
            assert await status_in(client) == 200

    on(new_loop, story)


class NoFiles:
    """A listening socket of a process that can open no more files, for so many attempts."""

    def __init__(self, sock: socket.socket, times: int) -> None:
        self._sock, self.times, self.tries = sock, times, 0

    def accept(self) -> Any:
        self.tries += 1
        if self.tries <= self.times:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@LOOPS
def test_a_process_without_files_waits_and_goes_on(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NO_FILES_S", 0.05)

    async def story() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        lacking: Any = NoFiles(listening, 3)
        served = asyncio.Event()

        class Greet(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                served.set()

        it = Listener("test", BOUNDS, lambda _: Greet(), lambda _, **__: None)
        it.listen(lacking)
        with socket.create_connection(listening.getsockname()):
            await served.wait()
        assert lacking.tries < 10, "it does not spin"
        assert it.counts[Reason.FULL] == 3
        it.close()

    on(new_loop, story)


@LOOPS
def test_of_a_unix_socket_a_flood_displaces_its_own(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = iter([1000, *[2000] * 50])
    monkeypatch.setattr(module, "peer_of", lambda _: next(users))

    async def story() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "sock"))
        listening.listen(100)
        made: list[Connection] = []

        def make(connection: Connection) -> asyncio.Protocol:
            made.append(connection)
            return asyncio.Protocol()

        it = Listener("test", BOUNDS, make, lambda _, **__: None)
        it.listen(listening)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(51)]
        for number, client in enumerate(clients):
            client.connect(str(tmp_path / "sock"))
            await until(lambda wanted=number: len(made) > wanted)
        assert it.open == BOUNDS.connections
        assert not made[0].is_over, "the honest one came first, and is none of the flood"
        it.close()
        for client in clients:
            client.close()

    on(new_loop, story)
