"""Agents' hooks that are cut off from the real bus while the daemon asks them: nothing of theirs stays lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg
from support.daemon_process import NODE, BusClient, DaemonProcess, _now, eventually, serving

from controlplane.core.commands import StateRequest
from controlplane.core.events import Event, ProgramEnded
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.wire.codec import decode_events
from controlplane.wire.subjects import event_subject, stream_name

pytestmark = pytest.mark.asyncio

# A daemon that soon takes the silent for gone.
HASTY = "[control.silence]\nask_publisher_after_s = 1.0\nask_publisher_every_s = 0.2\nask_publisher_times = 2\n"


class Way:
    """A TCP proxy before the bus, which can be cut."""

    def __init__(self) -> None:
        self._target = ("", 0)
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[str]:
        """The address in place of ``url``."""
        parts = urlsplit(url)
        self._target = (str(parts.hostname), int(parts.port or 0))
        server = await asyncio.start_server(self._on_client, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                yield f"nats://{parts.username}:{parts.password}@127.0.0.1:{port}"
            finally:
                self.cut()
                await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        self._is_cut = False

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        self._tasks.add(task := asyncio.ensure_future(self._serve(reader, writer)))
        await task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    (tmp_path / "hasty.toml").write_text(HASTY)
    daemon = DaemonProcess(tmp_path / "state", "--config", str(tmp_path / "hasty.toml"))
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.clean_up()


async def tools(client: BusClient, count: int) -> None:
    await client.status_where(
        lambda status: status["status"]["pressure"]["tools_active"] == count, f"{count} tools"
    )


async def test_a_tool_that_outlasts_its_agents_absence_is_known_again(daemon: DaemonProcess) -> None:
    way, client = Way(), await serving(daemon)
    async with way.to(await daemon.url()) as url:
        reporter = ToolReporter(url=url, node=NODE)
        try:
            reporter.tool_started("run", "call-1", "bash")
            await tools(client, 1)
            way.cut()
            await tools(client, 0)
            way.mend()
            await tools(client, 1)
            reporter.tool_ended("run", "call-1")
            await tools(client, 0)
        finally:
            reporter.close()
    await client.close()


async def test_who_was_away_when_all_were_asked_says_again_what_was_lost(daemon: DaemonProcess) -> None:
    """The goodbye is in a stream that is deleted before any daemon has read on in it."""
    way, client = Way(), await serving(daemon)
    async with way.to(await daemon.url()) as url:
        reporter = ToolReporter(url=url, node=NODE)
        try:
            reporter.tool_started("run", "call-1", "bash")
            await tools(client, 1)
            daemon.kill()
            reporter.program_ended("run")
            await eventually(lambda: _now(reporter.stats.sent >= 3), what="confirmation of the goodbye")
            way.cut()
            client.commands.clear()
            await client.client.jetstream().delete_stream(stream_name(NODE))
            daemon.start()
            said: list[Event] = []

            async def hear(message: Msg) -> None:
                said.extend(decode_events(message.data).events)

            await client.client.subscribe(event_subject(NODE, "tool"), cb=hear)
            await client.hears(
                lambda command: isinstance(command, StateRequest) and command.lost_ns > 0,
                "a request for all states",
            )
            way.mend()
            await eventually(
                lambda: _now([event for event in said if isinstance(event, ProgramEnded)]), what="the goodbye again"
            )
        finally:
            reporter.close()
    await client.close()
