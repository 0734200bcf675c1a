"""Every listener of the daemon and of the MCP proxy under floods, while turns are granted and operators answered.

The processes may open 1,024 files each, fewer than the connections that come.
"""

import asyncio
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from support.daemon_process import NODE, BusClient, DaemonProcess, eventually, says
from support.ports import free_port

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.errors import ControlPlaneError
from controlplane.fleet import ext_proc
from controlplane.operate.client import connect
from controlplane.shell import grpc_server
from controlplane.wire.bounds import raise_open_files
from controlplane.wire.endpoint import read_endpoint
from controlplane.wire.frames import Frame, pack

FILES = 1024
CONNECTIONS = 1000
WITHIN_S = 60.0
HERE = Path(__file__).parents[2]
GRPC_BOUNDS = {
    "grpc.max_allowed_incoming_connections",
    "grpc.max_concurrent_streams",
    "grpc.max_receive_message_length",
}
OTHERS = {  # what listens, and by what it is bounded
    "controlplane/wire/http_listener.py": "the page and the MCP proxy: a Listener accepts",
    "controlplane/shell/event_socket.py": "the agents' socket and their hooks: a Listener accepts",
    "controlplane/shell/grpc_server.py": "the control API: gRPC's own bounds",
    "controlplane/fleet/ext_proc.py": "the picker: gRPC's own bounds",
    "controlplane/lab/double/server.py": "the engine double, a laboratory's",
}
LISTENS = re.compile(
    r"sock\w*\.listen\(|listening\.listen\(|start_server\(|start_unix_server\(|create_server\(|TCPSite\(|UnixSite\(|uvicorn\.Config\(|\.aio\.server\("
)


@dataclass
class Door:
    """Where strangers connect. ``half`` begins a request; ``ask`` makes an honest one: whether it was answered."""

    pid: int
    connect: Callable[[], socket.socket]
    half: bytes
    whole: bytes
    ask: Callable[[], bool]


@dataclass
class Node:
    """A daemon under attack, and one who uses it."""

    daemon: DaemonProcess
    api: str
    bus: BusClient
    doors: dict[str, Door]
    programs: int = 0

    async def serves(self) -> None:
        """A program's turn is granted, and the operator is answered, at the socket's place if need be later."""
        self.programs += 1
        name = f"p{self.programs}"
        turn = ev.TurnQueued(program_id=name, turn_id=name, prompt_tokens=160)
        await self.bus.publish("test/gate/one", self.programs, [turn])
        await self.bus.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == name, f"a grant for {name}")

    def answers(self) -> bool:
        with suppress(ControlPlaneError), connect(self.api, NODE, self.daemon.folder) as client:
            return bool(client.call("GetStatus").node == NODE)
        return False


class FewFiles(DaemonProcess):
    """A daemon that may open few files, however it tries."""

    def start(self) -> None:
        command = ("-m", "controlplane", "up", "--node", NODE, "--state-dir", str(self.folder), *self.arguments)
        self.process = few_files(self.log_path, *command)


def few_files(log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        limited = ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", sys.executable, *command]
        return subprocess.Popen(limited, stdout=out, stderr=out, cwd=HERE)


def tcp(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def is_ok(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        return bool(answer.status == 200)
    return False


def unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)  # it blocks while the kernel's queue is full
    sock.connect(str(path))
    return sock


def greets(path: Path) -> bool:
    with unix(path) as sock:
        sock.settimeout(WITHIN_S)
        sock.sendall(pack(Frame.EVENTS, b"\xff"))
        kinds, answers = [], sock.makefile("rb")
        while head := answers.read(5):
            size, kind = struct.unpack(">IB", head)
            kinds.append(kind)
            answers.read(size)
            if kind == Frame.REFUSED:
                return True
    return False


def informs(connect: Callable[[], socket.socket]) -> bool:
    with suppress(OSError), connect() as sock:
        return sock.recv(1 << 12).startswith(b"INFO")
    return False


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    raise_open_files()
    page, api = free_port(), f"127.0.0.1:{free_port()}"
    config = tmp_path / "penstock.toml"
    config.write_text(f'preset = "fcfs"\n[http]\nlisten = "127.0.0.1:{page}"\n[api]\nlisten = "{api}"\n')
    daemon = FewFiles(tmp_path / "state", "--config", str(config))
    with ExitStack() as ending:
        ending.callback(daemon.clean_up)
        daemon.start()
        await says(daemon, f"http://127.0.0.1:{page}/")
        log = tmp_path / "proxy.log"
        upstream = f"http://127.0.0.1:{page}/healthz"
        proxy = few_files(log, "-m", "engine_hooks.tools.mcp_http_proxy", upstream)
        ending.callback(proxy.wait, WITHIN_S)
        ending.callback(proxy.terminate)

        async def address() -> int:
            found = re.search(r"127\.0\.0\.1:(\d+)/healthz passes", log.read_text())
            return int(found[1]) if found else 0

        port = await eventually(address, what="a proxy")
        sock = daemon.folder / f"{NODE}.sock"
        assert daemon.process is not None
        endpoint, pid = read_endpoint(NODE, daemon.folder), daemon.process.pid
        assert endpoint is not None
        server = tcp(int(endpoint.url.rpartition(":")[2]))
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        bus = await BusClient.connect(await daemon.url())
        ending.callback(BusClient.left_open.discard, bus)
        await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=10**6, free_blocks=10**6)])
        it = Node(daemon, api, bus, {})
        whole = request + b"\r\n"
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        it.doors = {
            "page": Door(pid, tcp(page), request, whole, lambda: is_ok(upstream)),
            "socket": Door(pid, lambda: unix(sock), b"\0\0\1\0\1x", b"\0\0\0\1\1x", lambda: greets(sock)),
            "bus": Door(endpoint.pid, server, b"CON", b"PING\r\n", lambda: informs(server)),
            "MCP proxy": Door(
                proxy.pid, tcp(port), request, whole, lambda: is_ok(f"http://127.0.0.1:{port}/healthz")
            ),
            "control API": Door(pid, tcp(int(api.rpartition(":")[2])), preface[:9], preface, it.answers),
        }
        yield it
        await bus.close()


def open_many(door: Door, data: bytes) -> list[socket.socket]:
    found = []
    for _ in range(CONNECTIONS):
        with suppress(OSError):
            sock = door.connect()
            found.append(sock)
            sock.sendall(data)
    return found


def come_and_go(door: Door, data: bytes) -> list[socket.socket]:
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        with suppress(OSError), door.connect() as sock:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(data)
    return []


ATTACKS: dict[str, Callable[[Door], list[socket.socket]]] = {
    "idle": lambda door: open_many(door, b""),
    "half a request": lambda door: open_many(door, door.half),
    "requests by the dozen, whose answers are not read": lambda door: open_many(door, door.whole * 24),
    "comes and goes": lambda door: come_and_go(door, door.whole),
    "comes and goes at half a request": lambda door: come_and_go(door, door.half),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["page", "socket", "MCP proxy", "control API", "bus"])
async def test_a_flood_of_one_listener_ends_nothing_and_locks_nobody_out(node: Node, door: str) -> None:
    attacked = node.doors[door]
    for attack in ATTACKS.values():
        flood = asyncio.create_task(asyncio.to_thread(attack, attacked))
        await node.serves()
        sockets = await flood
        try:
            await node.serves()
            for each in node.doors.values():  # gRPC cannot tell strangers apart: there it takes until they time out
                await eventually(lambda each=each: asyncio.to_thread(each.ask), what=door)
                assert 0 < len(os.listdir(f"/proc/{each.pid}/fd")) < FILES  # noqa: PTH208
        finally:
            for sock in sockets:
                sock.close()
    assert "Traceback" not in node.daemon.log


@asynccontextmanager
async def streams(node: Node, count: int) -> AsyncIterator[list[socket.socket]]:
    found = [node.doors["page"].connect() for _ in range(count)]
    try:
        for sock in found:
            sock.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield found
    finally:
        for sock in found:
            sock.close()


@pytest.mark.asyncio
async def test_streams_that_are_not_read_give_way_to_others_but_not_the_operators(node: Node) -> None:
    with connect(node.api, NODE, node.daemon.folder) as client:
        key = client.call("OpenPage").key

    def follow(headers: str = "") -> socket.socket:
        sock = node.doors["page"].connect()
        sock.sendall(f"GET /live HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        assert sock.recv(1 << 10).startswith(b"HTTP/1.1 200")
        return sock

    def goes_on(sock: socket.socket) -> None:
        for _ in range(5):
            assert sock.recv(1 << 20)

    with follow(f"Authorization: Bearer {key}\r\n") as operator:
        async with streams(node, 64):
            with follow() as other:
                await asyncio.to_thread(goes_on, other)
            async with streams(node, 64):
                await asyncio.to_thread(goes_on, operator)
    assert node.answers()


HEADERS = (
    "Authorization: Bearer x",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    'If-None-Match: "a"',
    "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT",
    "Range: bytes=0-1",
    "Expect: 100-continue",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Content-Encoding: gzip",
    "mcp-session-id: s",
)
TARGETS = (
    "/",
    "/healthz",
    "/programs?contains=a&page=1",
    "/program?id=p",
    "/page/page.js",
    "/what-if",
    "/metrics",
    "*",
)


def requests() -> Iterator[bytes]:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        for target in TARGETS:
            for header in HEADERS:
                yield f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\nhello".encode()


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["page", "MCP proxy"])
async def test_any_bytes_are_answered_as_the_clients_mistake(node: Node, door: str) -> None:
    chance = random.Random(43)
    nasty = [b"\xe9", b"\0", b"\r", b"[", b"//", b"@", b"%00", b"\xed\xa0\x80", b"A" * 70_000, b"\x1b[2J", b"-1"]
    corpus = list(requests())

    def put(data: bytes) -> bytes:
        with node.doors[door].connect() as sock, suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(1 << 12)
        return b""

    for _ in range(1500):
        data = chance.choice(corpus)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            data = data[:at] + chance.choice([*nasty, chance.randbytes(1)]) + data[at + chance.randrange(3) :]
        answer = await asyncio.to_thread(put, data)
        assert not re.match(rb"HTTP/1.\d 50[0145]", answer), (data, answer)
    assert node.doors[door].ask()
    logs = node.daemon.log + (node.daemon.folder.parent / "proxy.log").read_text()
    assert "Traceback" not in logs


def test_whatever_listens_is_in_the_table_of_its_bounds() -> None:
    found = {
        str(path.relative_to(HERE))
        for room in ("controlplane", "engine_hooks")
        for path in (HERE / room).rglob("*.py")
        if LISTENS.search(path.read_text())
    }
    assert found == OTHERS.keys(), "a new listener: accept through a Listener, and add a door to this test"
    for module in (grpc_server, ext_proc):
        assert dict(module.OPTIONS).keys() >= GRPC_BOUNDS
        assert all(bound > 0 for name, bound in module.OPTIONS if name in GRPC_BOUNDS)
