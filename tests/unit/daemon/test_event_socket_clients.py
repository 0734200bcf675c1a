"""Clients of the daemon's socket that are gone, or read nothing, while it writes to all. The bus is a double."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from controlplane.core.model.commands import StateRequest
from controlplane.core.model.events import ToolStarted
from controlplane.daemon.bus import event_socket
from controlplane.daemon.bus.event_socket import EventSocket
from controlplane.transport.subjects import publisher_name
from controlplane.wire.codec import encode_events
from controlplane.wire.frames import Frame, pack, read

NODE = "node"
BATCH = pack(
    Frame.EVENTS,
    encode_events(
        publisher_name(NODE, "tool", "boot"), 1, [(1, ToolStarted(program_id="p", call_id="c", tool="bash"))]
    ),
)


class Bus:
    """Confirms nothing before it is told to."""

    node = NODE

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.confirms = asyncio.Event()

    async def relay_events(self, role: str, batch: bytes) -> bool:
        self.asked.set()
        await self.confirms.wait()
        return True


def request(n: int) -> StateRequest:
    return StateRequest(command_id=n, publisher="somebody", reason="x" * 1000)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[EventSocket, Any]]:
    bus: Any = Bus()
    sock = EventSocket(path, bus)
    await sock.open()
    try:
        yield sock, bus
    finally:
        bus.confirms.set()
        await sock.close()


def on_uvloop(test: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    """On the daemon's loop, which is stricter than asyncio's own about what is closed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(folder / "node.sock"), 60))


def test_one_that_is_gone_while_its_report_is_relayed_ends_nobody(tmp_path: Path) -> None:
    async def test(path: Path) -> None:
        async with opened(path) as (sock, bus):
            _, gone = await asyncio.open_unix_connection(path)
            gone.write(BATCH)
            await bus.asked.wait()
            gone.close()
            await gone.wait_closed()
            reader, writer = await asyncio.open_unix_connection(path)
            await read(reader)  # the greeting
            for n in range(1, 4):  # the first finds out that it is gone
                sock.pass_on([request(n)])
                frame = await read(reader)
                assert frame is not None
                assert frame[0] == Frame.COMMANDS
            writer.close()

    on_uvloop(test, tmp_path)


def test_one_that_reads_nothing_is_dropped_and_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_socket, "BOUNDS", replace(event_socket.BOUNDS, unread_bytes=100_000))

    async def test(path: Path) -> None:
        async with opened(path) as (sock, _):
            reader, writer = await asyncio.open_unix_connection(path, limit=1000)
            frames = 0
            for n in range(3000):
                sock.pass_on([request(n)])
                await asyncio.sleep(0)
            while await read(reader) is not None:
                frames += 1
            assert frames < 3000
            writer.close()
            reader, writer = await asyncio.open_unix_connection(path)
            assert await read(reader) is not None
            writer.close()

    on_uvloop(test, tmp_path)


def test_one_that_sends_thousands_at_once_leaves_others_their_turn(tmp_path: Path) -> None:
    async def test(path: Path) -> None:
        async with opened(path) as (sock, _):
            _, flooding = await asyncio.open_unix_connection(path)
            flooding.write(pack(Frame.EVENTS) * 5000)
            while not sock.refused:  # noqa: ASYNC110  a count has no event
                await asyncio.sleep(0)
            before = sock.refused
            await asyncio.sleep(0)
            assert sock.refused - before < 100, "frames in one turn of the loop"
            flooding.close()

    on_uvloop(test, tmp_path)
