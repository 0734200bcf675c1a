"""Agents without credentials: their reports through the daemon's Unix socket, onto the real bus."""

import asyncio
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, bus_of, eventually, running, says, serving
from support.nats import NatsServer

from controlplane.core.model.commands import StateRequest
from controlplane.core.model.events import Event, Grant, ProgramArrived, PublisherState, ToolStarted, TurnEnded
from controlplane.core.scheduling.liveness import LOST_NS
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.transport.subjects import publisher_name
from controlplane.wire.codec import decode_commands, encode_events
from controlplane.wire.frames import MAX_FRAME_BYTES, Frame, pack, read


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path) as daemon:
        yield daemon


def path_of(daemon: DaemonProcess) -> Path:
    return daemon.folder / f"{NODE}.sock"


async def listens(daemon: DaemonProcess) -> None:
    await eventually(path_of(daemon).exists, what="socket")


def program_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(status["programs"].get(name, {}))


async def test_what_is_told_is_neither_lost_nor_forgotten_while_the_daemon_is_away(daemon: DaemonProcess) -> None:
    """Also where the daemon has lost its state and its stream: the call that runs is told again."""
    reporter = ToolReporter(url=f"unix:{path_of(daemon)}", node=NODE)

    async def tools(client: BusClient, count: int) -> None:
        await client.status_where(lambda s: program_of(s, "run").get("open_tools", 0) == count, f"{count} tools")

    try:
        await listens(daemon)
        async with bus_of(daemon) as client:
            reporter.program_started("run", tenant="team")
            reporter.tool_started("run", "call-1", "bash")
            await tools(client, 1)
            daemon.kill()
            reporter.tool_ended("run", "call-1")
            reporter.tool_started("run", "call-2", "bash")
            reporter.tool_started("run", "call-3", "bash")
            daemon.start()
            await tools(client, 2)
            reporter.tool_ended("run", "call-2")
            await tools(client, 1)
        stats = reporter.stats
        assert (stats.dropped, stats.rejected, stats.connections) == (0, 0, 2)
        daemon.stop()
        for path in daemon.folder.iterdir():
            if path.is_dir():
                path.rename(path.with_suffix(".gone"))
        daemon.start()
        async with bus_of(daemon) as client:
            await tools(client, 1)
            reporter.program_ended("run")
            await tools(client, 0)
    finally:
        reporter.close()


def asked(path: Path, frame: bytes) -> tuple[int, str]:
    """What the daemon answers: the kind, and the text; 0 where it hangs up."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(frame)
        answers = client.makefile("rb")
        while head := answers.read(5):
            size, kind = struct.unpack(">IB", head)
            text = answers.read(size)
            if kind != Frame.COMMANDS:
                return kind, text.decode()
    return 0, ""


def batch(event: Event, *, role: str = "tool", node: str = NODE) -> bytes:
    return pack(Frame.EVENTS, encode_events(publisher_name(node, role, "boot"), 1, [(1, event)]))


async def test_only_runs_and_tools_may_be_told(daemon: DaemonProcess) -> None:
    await listens(daemon)
    path = path_of(daemon)
    tool = ToolStarted(program_id="p", call_id="c", tool="bash")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert asked(path, batch(tool)) == (Frame.TAKEN, "")
    kind, why = asked(path, batch(TurnEnded(program_id="p", turn_id="t")))
    assert (kind, "only runs and tools" in why) == (Frame.REFUSED, True)
    kind, why = asked(path, batch(ProgramArrived(program_id="p"), role="engine"))
    assert (kind, f"expected {NODE}/tool/BOOT" in why) == (Frame.REFUSED, True)
    assert asked(path, batch(tool, node="another"))[0] == Frame.REFUSED
    assert asked(path, batch(PublisherState(role="tool", grants=(Grant(program_id="p"),))))[0] == Frame.REFUSED
    assert asked(path, batch(PublisherState(role="tool")))[0] == Frame.TAKEN
    assert asked(path, pack(Frame.EVENTS, b"\xff\xff"))[0] == Frame.REFUSED
    assert asked(path, struct.pack(">IB", MAX_FRAME_BYTES + 1, Frame.EVENTS))[0] == 0
    assert asked(path, pack(Frame.COMMANDS))[0] == 0
    assert "batch refused" in daemon.log


async def test_a_path_that_no_socket_can_have_is_told(tmp_path: Path) -> None:
    with running(tmp_path, config=f'tool_socket = "{tmp_path}/{"long" * 40}.sock"\n') as daemon:
        await says(daemon, "longer than 107 bytes")
        await (await serving(daemon)).close()


async def test_a_bus_that_was_frozen_under_a_report_is_heard_again(tmp_path: Path, nats_server: NatsServer) -> None:
    """nats-py stops reading for minutes once an answer comes after its limit: the daemon would be deaf."""
    with running(tmp_path, "--nats", nats_server.url) as daemon:
        reporter = ToolReporter(url=f"unix:{path_of(daemon)}", node=NODE)
        try:
            await listens(daemon)
            client = await BusClient.connect(nats_server.url)
            reporter.tool_started("run", "call-1", "bash")
            await client.status_where(lambda s: program_of(s, "run").get("open_tools") == 1, "an open tool")
            nats_server.suspend()
            reporter.tool_started("run", "call-2", "bash")
            await eventually(
                lambda: reporter.stats.last_error, what="a socket whose batch the bus does not confirm"
            )
            nats_server.resume()
            await client.status_where(lambda s: program_of(s, "run").get("open_tools") == 2, "two open tools")
            await client.close()
            assert "reading anew" not in daemon.log
        finally:
            reporter.close()


async def test_who_connects_after_all_were_asked_is_asked_for_what_was_lost(daemon: DaemonProcess) -> None:
    """Agents come back within seconds of a daemon's start, and it asks everybody once."""
    await listens(daemon)

    async def greeting() -> int:
        reader, writer = await asyncio.open_unix_connection(str(path_of(daemon)))
        try:
            frame = await read(reader)
        finally:
            writer.close()
            await writer.wait_closed()
        assert frame is not None
        (request,) = decode_commands(frame[1])
        assert isinstance(request, StateRequest)
        return request.lost_ns

    assert await eventually(greeting, what="a greeting that asks for the latest minute") >= LOST_NS
