"""What strangers can take of a listener: each bound broken over real sockets, while an honest client is served."""

import asyncio
import errno
import functools
import gc
import inspect
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controlplane import clocks
from controlplane.transport import listener as module
from controlplane.transport.bounds import Bounds, Reason
from controlplane.transport.http_listener import HttpListener
from controlplane.transport.listener import Connection, Listener

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
WITHIN_S = 60.0
EITHER = [asyncio.new_event_loop, uvloop.new_event_loop]
LOOPS = pytest.mark.parametrize("new_loop", EITHER, ids=["asyncio", "uvloop"])


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

    async def status(self, path: str = "/") -> int:
        """Of one request of a new client; 0: it was hung up on."""
        return await status_in(await self.connect(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()))


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


def in_a_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a story, in the loop that the parameter ``new_loop`` makes."""

    @functools.wraps(story)
    def test(new_loop: Callable[[], asyncio.AbstractEventLoop], **parameters: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            clocks.tick_in(runner.get_loop())
            runner.run(asyncio.wait_for(story(**parameters), WITHIN_S))

    loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    own = inspect.signature(story)
    test.__signature__ = own.replace(parameters=[*own.parameters.values(), loop])  # type: ignore[attr-defined]
    return test


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


@pytest.mark.parametrize(("form", "new_loop"), [*zip(SLOW, cycle(EITHER), strict=False)])
@in_a_loop
async def test_who_is_slow_is_hung_up_on_and_locks_nobody_out(form: str) -> None:
    begun, answered = SLOW[form]
    async with served() as it:
        clients = [await it.connect(begun) for _ in range(50)]
        assert await it.status() == 200
        assert it.listener.open <= BOUNDS.connections
        answer = asyncio.create_task(status_in(clients[-1]))
        slow = [asyncio.create_task(trickle(sock)) for sock in clients if not form.startswith("silent")]
        await until(lambda: it.listener.open == 0)
        assert await answer == answered
        await asyncio.gather(*slow)
        assert it.listener.counts[Reason.DISPLACED] >= 50 - BOUNDS.connections
        assert len(it.warned) == 1


@LOOPS
@in_a_loop
async def test_who_reads_nothing_is_hung_up_on() -> None:
    """What waits in the kernel counts, too: there it is, before the stream's own buffer has anything."""
    async with served() as it:
        asked = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"
        await it.connect(asked, receives=1 << 12)
        reads = await it.connect(asked)
        while not it.listener.counts[Reason.UNREAD]:
            assert await asyncio.get_running_loop().sock_recv(reads, 1 << 16), "who reads stays"
        assert it.listener.open == 1


@LOOPS
@in_a_loop
async def test_bodies_under_way_hold_so_much_memory_at_most() -> None:
    async with served(replace(BOUNDS, arrived_bytes=1 << 20, body_s=WITHIN_S)) as it:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n"
        for _ in range(4):
            await it.connect(head + b"x" * 400_000)
        await until(lambda: it.listener.counts[Reason.LARGE] >= 1)
        assert await it.status() == 200


UNREADABLE = {
    "random bytes": b"\xf3\x01\0" * 350_000,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" * 100_000,
    "trailers": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: \xff\0" * 200_000,
    "after a request": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" + b"\1" * 1_000_000,
}


@pytest.mark.parametrize(("form", "new_loop"), [*zip(UNREADABLE, cycle(EITHER), strict=False)])
@in_a_loop
async def test_of_what_is_no_request_little_is_looked_at(form: str) -> None:
    """And nothing of it stays: the first error would hold it until the collector looks."""
    async with served() as it:
        gc.collect()
        gc.disable()
        try:
            sock = await it.connect(UNREADABLE[form])
            with suppress(ConnectionError):
                while answer := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
                    assert len(answer) < 100_000
            await until(lambda: it.listener.open == 0)
            errors = [each for each in gc.get_objects() if isinstance(each, HttpProcessingError)]
            assert errors == []
        finally:
            gc.enable()
        assert await it.status() == 200


@pytest.mark.parametrize("new_loop", EITHER[:1], ids=["asyncio"])
@in_a_loop
async def test_time_in_which_the_process_stood_still_counts_for_nobody() -> None:
    async with served(replace(BOUNDS, request_s=5.0)) as it:
        client = await it.connect(b"GET / HTTP/1.1\r\n")
        await until(lambda: it.listener.open == 1)
        time.sleep(8)  # noqa: ASYNC251  as a process that is stopped
        await asyncio.sleep(0.1)
        client.sendall(b"Host: h\r\n\r\n")
        assert await status_in(client) == 200


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
@in_a_loop
async def test_a_process_without_files_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NO_FILES_S", 0.05)
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


@LOOPS
@in_a_loop
async def test_of_a_unix_socket_a_flood_displaces_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = iter([1000, *[2000] * 50, os.geteuid()])
    monkeypatch.setattr(module, "peer_of", lambda _: next(users))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "sock"))
    listening.listen(100)
    made: list[Connection] = []

    def make(connection: Connection) -> asyncio.Protocol:
        made.append(connection)
        return asyncio.Protocol()

    it = Listener("test", replace(BOUNDS, request_s=WITHIN_S), make, lambda _, **__: None)
    it.listen(listening)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(51)]
    for number, client in enumerate(clients):
        client.connect(str(tmp_path / "sock"))
        await until(lambda wanted=number: len(made) > wanted)
    assert it.open == BOUNDS.connections
    assert not made[0].is_over, "the honest one came first, and is none of the flood"
    for each in made:
        each.begin()
    clients.append(socket.socket(socket.AF_UNIX))
    clients[-1].connect(str(tmp_path / "sock"))
    await until(lambda: len(made) > 51)
    assert it.open == BOUNDS.connections + 1, "our own user has a place beyond, while all are busy"
    it.close()
    for client in clients:
        client.close()
