"""Every listener of the daemon and of the MCP proxy under floods, while turns are granted and operators answered.

The processes may open 1,024 files each, fewer than the connections that come.
"""

import asyncio
import os
import random
import re
import socket
import struct
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import nats.errors
import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, eventually, queued, run_python, says, until
from support.floods import ATTACKS, GREETING, HTTP2, WITHIN_S, Door, tcp, unix
from support.ports import free_port

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ControlPlaneError
from controlplane.daemon.api import grpc_server
from controlplane.daemon.otlp import servers
from controlplane.fleet import ext_proc
from controlplane.operate.client import connect
from controlplane.transport.bounds import raise_open_files
from controlplane.wire.frames import Frame, pack

FILES = 1024
HERE = Path(__file__).parents[2]
GRPC_BOUNDS = {
    "grpc.max_allowed_incoming_connections",
    "grpc.max_concurrent_streams",
    "grpc.max_receive_message_length",
}
OTHERS = {  # what listens, and by what it is bounded
    "controlplane/transport/http_listener.py": "the page and the MCP proxy: a Listener accepts",
    "controlplane/daemon/bus/event_socket.py": "the agents' socket and their hooks: a Listener accepts",
    "controlplane/daemon/api/grpc_server.py": "the control API: gRPC's own bounds",
    "controlplane/fleet/ext_proc.py": "the picker: gRPC's own bounds",
    "controlplane/daemon/otlp/servers.py": "OTLP: gRPC's own bounds; over HTTP a Listener accepts",
    "controlplane/lab/double/server.py": "the engine double, a laboratory's",
}
LISTENS = re.compile(
    r"sock\w*\.listen\(|listening\.listen\(|start_server\(|start_unix_server\(|create_server\(|TCPSite\(|UnixSite\(|uvicorn\.Config\(|\.aio\.server\("
)


@dataclass
class Node:
    """A daemon under attack, and one who uses it."""

    daemon: DaemonProcess
    api: str
    bus: BusClient
    doors: dict[str, Door]
    programs: int = 0

    async def serves(self) -> None:
        """A program's turn is granted. As a gate does, it tells again of one that waits: a word may be lost."""
        await eventually(self.is_granted, what="a grant", timeout_s=2 * WITHIN_S)

    async def is_granted(self) -> bool:
        self.programs += 1
        name = f"p{id(self)}-{self.programs}"
        with suppress(nats.errors.Error, TimeoutError):  # the connection was lost: the next goes by another
            await self.bus.publish(f"test/gate/{id(self)}", self.programs, queued(name))
        for _ in range(100):
            if any(isinstance(c, cmd.Admit) and c.program_id == name for c in self.bus.commands):
                return True
            await asyncio.sleep(0.1)
        return False

    def answers(self) -> bool:
        with suppress(ControlPlaneError), connect(self.api, NODE, self.daemon.folder) as client:
            return bool(client.call("GetStatus").node == NODE)
        return False


def is_ok(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        return bool(answer.status == 200)
    return False


def takes_spans(port: int) -> bool:
    """None at all, which are an empty message."""
    headers = {"Content-Type": "application/x-protobuf"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/traces", b"", headers)
    with suppress(OSError), urllib.request.urlopen(asked, timeout=WITHIN_S) as answer:
        return bool(answer.status == 200)
    return False


def takes_calls(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, suppress(grpc.RpcError):
        export = channel.unary_unary(f"/{servers.SERVICE}/Export")
        return export(b"", timeout=WITHIN_S) == b""
    return False


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


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, str, dict[str, Door]]]:
    raise_open_files()
    folder = tmp_path_factory.mktemp("listeners")
    page, spans, calls, api = free_port(), free_port(), free_port(), f"127.0.0.1:{free_port()}"
    config = folder / "penstock.toml"
    config.write_text(
        f'preset = "fcfs"\n[http]\nlisten = "127.0.0.1:{page}"\n[api]\nlisten = "{api}"\n'
        f'[otlp]\nhttp = "127.0.0.1:{spans}"\ngrpc = "127.0.0.1:{calls}"\n'
    )
    daemon = DaemonProcess(folder / "state", "--config", str(config), files=FILES)
    with ExitStack() as ending:
        ending.callback(daemon.clean_up)
        daemon.start()
        asyncio.run(says(daemon, f"http://127.0.0.1:{page}/"))
        log = folder / "proxy.log"
        upstream = f"http://127.0.0.1:{page}/healthz"
        proxy = run_python(log, "-m", "engine_hooks.tools.mcp_http_proxy", upstream, files=FILES)
        ending.callback(proxy.wait, WITHIN_S)
        ending.callback(proxy.terminate)
        passes = re.compile(r"127\.0\.0\.1:(\d+)/healthz passes")
        port = int(until(lambda: passes.search(log.read_text()), "a proxy")[1])
        sock = daemon.folder / f"{NODE}.sock"
        assert daemon.process is not None
        pid, server = daemon.process.pid, tcp(int(asyncio.run(daemon.url()).rpartition(":")[2]))
        half = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        whole = half + b"\r\n"
        proxied = f"http://127.0.0.1:{port}/healthz"
        yield (
            daemon,
            api,
            {
                "page": Door(tcp(page), half, whole, pid, lambda: is_ok(upstream)),
                "socket": Door(lambda: unix(sock), b"\0\0\1\0\1x", GREETING, pid, lambda: greets(sock)),
                "bus": Door(server, b"CON", b"PING\r\n", daemon.server_pid, lambda: informs(server)),
                "MCP proxy": Door(tcp(port), half, whole, proxy.pid, lambda: is_ok(proxied)),
                "OTLP": Door(tcp(spans), half, whole, pid, lambda: takes_spans(spans)),
                "OTLP over gRPC": Door(tcp(calls), HTTP2[:9], HTTP2, pid, lambda: takes_calls(calls)),
                "control API": Door(tcp(int(api.rpartition(":")[2])), HTTP2[:9], HTTP2, pid),
            },
        )


@pytest.fixture
async def node(doors: tuple[DaemonProcess, str, dict[str, Door]]) -> AsyncIterator[Node]:
    daemon, api, others = doors
    bus = await BusClient.connect(await daemon.url())
    it = Node(daemon, api, bus, dict(others))
    it.doors["control API"] = replace(others["control API"], ask=it.answers)
    await bus.publish(f"test/engine/{id(it)}", 1, [ev.PoolSampled(total_blocks=10**6, free_blocks=10**6)])
    yield it
    await bus.close()


@pytest.mark.parametrize("door", ["page", "socket", "MCP proxy", "control API", "bus", "OTLP", "OTLP over gRPC"])
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


async def test_streams_that_are_not_read_give_way_to_others(node: Node) -> None:
    def goes_on() -> None:
        with node.doors["page"].connect() as sock:
            sock.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for _ in range(5):
                assert sock.recv(1 << 20)

    async with streams(node, 64):
        await asyncio.to_thread(goes_on)
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
    "/metrics",
    "*",
)


def requests() -> Iterator[bytes]:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        for target in TARGETS:
            for header in HEADERS:
                yield f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\nhello".encode()


@pytest.mark.parametrize("door", ["page", "MCP proxy", "OTLP"])
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

    for _ in range(500):
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
    for module in (grpc_server, ext_proc, servers):
        assert dict(module.OPTIONS).keys() >= GRPC_BOUNDS
        assert all(bound > 0 for name, bound in module.OPTIONS if name in GRPC_BOUNDS)
