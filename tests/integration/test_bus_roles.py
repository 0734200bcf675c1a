"""The embedded server's users: each may do what its role does, and the rest is refused by the server."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
from nats.aio.client import Client
from support.daemon_process import (
    NODE,
    TIMEOUT_S,
    BusClient,
    DaemonProcess,
    bus_of,
    eventually,
    queued,
    running,
    says,
    serving,
)
from support.nats import nats_server_binary
from support.ports import free_port, is_listening

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.emit.emitter import Emitter
from controlplane.transport.delivery import delivered
from controlplane.transport.endpoint import Endpoint, read_endpoint, write_endpoint
from controlplane.transport.nats_url import redact
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import (
    all_events_subject,
    command_subject,
    event_subject,
    heartbeat_subject,
    status_subject,
    stream_name,
    tool_command_subject,
)
from controlplane.wire.codec import Heartbeat, encode_commands, encode_events, encode_heartbeat

COMMAND = encode_commands([cmd.Admit(command_id=1, program_id="p", reason="forged")])
BEAT = encode_heartbeat(Heartbeat(node=NODE, boot_id="forged", lease_ttl_ns=10**9, limit=1, window=1.0))
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=900)
STREAM = stream_name(NODE)


def batch(publisher: str, *events: ev.Event) -> bytes:
    return encode_events(publisher, 1, [(0, event) for event in events])


NOT_FOR_ALL = {
    command_subject(NODE): COMMAND,
    tool_command_subject(NODE): COMMAND,
    heartbeat_subject(NODE): BEAT,
    status_subject(NODE): b"{}",
    event_subject(NODE, "control"): batch(f"{NODE}/control/x", ev.OperatorOrders(draining=True)),
    event_subject(NODE, "host"): batch(f"{NODE}/host/x", ev.HostSampled(cpus=1, cpu_use_ratio=1)),
    event_subject("another", "tool"): batch("another/tool/x", ev.ProgramArrived(program_id="p")),
    event_subject("another", "engine"): batch("another/engine/x", POOL),
    f"$JS.API.STREAM.DELETE.{STREAM}": b"",
    f"$JS.API.STREAM.PURGE.{STREAM}": b"",
    f"$JS.API.STREAM.MSG.GET.{STREAM}": b'{"seq": 1}',
    f"$JS.API.CONSUMER.CREATE.{STREAM}": b"{}",
    "_INBOX.guessed": b"",
    "anything": b"",
}
ENGINES = {event_subject(NODE, role): batch(f"{NODE}/{role}/x", POOL) for role in ("engine", "engine-1", "gate")}
AGENTS = {event_subject(NODE, "tool"): batch(f"{NODE}/tool/x", ev.ProgramArrived(program_id="p"))}
MAY_NOT_SAY = {
    BusRole.AGENT: NOT_FOR_ALL | ENGINES,
    BusRole.ENGINE: NOT_FOR_ALL | AGENTS,
    BusRole.READER: NOT_FOR_ALL | ENGINES | AGENTS,
}
MAY_NOT_HEAR = {
    BusRole.AGENT: (
        ">",
        command_subject(NODE),
        all_events_subject(NODE),
        status_subject(NODE),
        "_INBOX.>",
        "$SYS.>",
    ),
    BusRole.ENGINE: (">", all_events_subject(NODE), status_subject(NODE), "_INBOX.>", "$SYS.>"),
    BusRole.READER: (">", "_INBOX.>", command_subject("another"), "$SYS.>"),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running(tmp_path_factory.mktemp("roles")) as daemon:
        yield daemon


def url_of(daemon: DaemonProcess, role: BusRole) -> str:
    endpoint = read_endpoint(daemon.node, daemon.folder)
    assert endpoint is not None
    return endpoint.url_of(role)


class User:
    """A client of the bus that knows what the server refused it."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.client = Client()

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str) -> AsyncIterator["User"]:
        self = cls()
        self.client = await nats.connect(
            url, allow_reconnect=False, connect_timeout=round(TIMEOUT_S), error_cb=self._hear
        )
        try:
            yield self
        finally:
            await self.client.close()

    async def _hear(self, error: Exception) -> None:
        self.refused.append(str(error))

    async def is_refused(self, subject: str, action: str) -> None:
        """Return once the server said so."""

        wanted = f'permissions violation for {action} to "{subject.lower()}"'
        await eventually(
            lambda: any(wanted in why for why in self.refused), what=f"{wanted}; there are {self.refused}"
        )

    async def says(self, subject: str, data: bytes, reply: str = "") -> None:
        await self.client.publish(subject, data, reply=reply)
        await delivered(self.client)


@asynccontextmanager
async def listening_in(daemon: DaemonProcess) -> AsyncIterator[tuple[BusClient, list[tuple[str, bytes]]]]:
    """A client with the daemon's rights, and a list that grows by what is said on the bus."""
    heard: list[tuple[str, bytes]] = []

    async def hear(message: Any) -> None:
        heard.append((message.subject, message.data))

    async with bus_of(daemon) as bus:
        await bus.client.subscribe(f"penstock.v1.{NODE}.>", cb=hear)
        await delivered(bus.client)
        yield bus, heard


@pytest.mark.parametrize("role", list(MAY_NOT_SAY))
async def test_the_server_refuses_what_is_not_the_roles(daemon: DaemonProcess, role: BusRole) -> None:
    """And nothing comes of it: nobody hears it, the stream does not hold it, and is there as before."""
    async with listening_in(daemon) as (bus, heard):
        stream = bus.client.jetstream(timeout=TIMEOUT_S)
        before, status_before = await stream.stream_info(STREAM), (await bus.status())["status"]
        async with User.connected(url_of(daemon, role)) as user:
            for subject, data in MAY_NOT_SAY[role].items():
                await user.says(subject, data)
                await user.is_refused(subject, "publish")
            for subject in MAY_NOT_HEAR[role]:
                await user.client.subscribe(subject)
                await user.is_refused(subject, "subscription")
        after, status = await stream.stream_info(STREAM), (await bus.status())["status"]
    assert (after.created, after.state.first_seq) == (before.created, before.state.first_seq)
    forged = set(MAY_NOT_SAY[role].values()) - {b"", b"{}"}
    assert [subject for subject, data in heard if data in forged] == []
    for figure in ("refused", "rejected", "programs"):
        assert status[figure] == status_before[figure]
    assert not status["orders"]["draining"]


async def test_an_agent_that_speaks_as_an_engine_is_refused_and_counted(daemon: DaemonProcess) -> None:
    """The server lets it, since it is on the agents' own subject; the daemon does not believe it."""
    async with bus_of(daemon) as bus:
        await bus.publish(f"{NODE}/engine/real", 1, [POOL])
        await bus.status_where(lambda s: s["status"]["pressure"]["kv_total_blocks"] == 1000, "the pool")
        async with User.connected(url_of(daemon, BusRole.AGENT)) as agent:
            own = event_subject(NODE, "tool")
            await agent.says(own, batch(f"{NODE}/engine/forged", ev.PoolSampled(total_blocks=7, free_blocks=7)))
            await agent.says(own, batch(f"{NODE}/control/forged", ev.OperatorOrders(draining=True)))
            await agent.says(own, batch(f"{NODE}/tool/x", ev.PoolSampled(total_blocks=7, free_blocks=7)))
        status = (await bus.status_where(lambda s: s["status"]["refused"] == 3, "three refusals"))["status"]
    assert status["pressure"]["kv_total_blocks"] == 1000
    assert not status["orders"]["draining"]
    assert status["last_rejection"].endswith("PoolSampled: only runs and tools are told here")
    await says(daemon, "events refused")


async def test_the_server_answers_nobody_on_a_subject_of_their_choice(daemon: DaemonProcess) -> None:
    """JetStream would confirm what it keeps on whatever subject the sender names: with its rights, not theirs."""
    async with listening_in(daemon) as (bus, heard):
        before = (await bus.status())["status"]["stream_sequence"]
        async with User.connected(url_of(daemon, BusRole.AGENT)) as agent:
            for reply in (command_subject(NODE), heartbeat_subject(NODE), f"$JS.API.STREAM.PURGE.{STREAM}"):
                await agent.says(event_subject(NODE, "tool"), batch(f"{NODE}/tool/{len(reply)}"), reply=reply)
        await bus.status_where(lambda s: s["status"]["stream_sequence"] >= before + 3, "the batches")
        assert [data for _, data in heard if data.startswith(b'{"stream"')] == []
        assert (await bus.client.jetstream(timeout=TIMEOUT_S).stream_info(STREAM)).state.first_seq == 1


async def answer(url: str) -> bytes:
    """What the server says to who connects with what the URL holds."""
    told = urlsplit(url)
    reader, writer = await asyncio.open_connection(told.hostname, told.port)
    await reader.readline()
    said = {"verbose": False, "user": told.username or "", "pass": told.password or ""}
    writer.write(f"CONNECT {json.dumps(said)}\r\nPING\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line.strip()


async def test_nobody_comes_in_with_anothers_password(daemon: DaemonProcess) -> None:
    await (await serving(daemon)).close()
    for role, other in pairwise([*BusRole, next(iter(BusRole))]):
        right = url_of(daemon, role)
        password = url_of(daemon, other).rpartition("@")[0].rpartition(":")[2]
        user = right.partition("//")[2].partition(":")[0]
        for wrong in (redact(right), f"nats://{user}:{password}@{redact(right).partition('//')[2]}"):
            assert await answer(wrong) == b"-ERR 'Authorization Violation'"
        assert await answer(right) == b"PONG"


async def test_each_hears_what_is_for_it_and_passwords_outlive_the_server(daemon: DaemonProcess) -> None:
    """Whoever was given a URL keeps it, where the port is a fixed one."""
    heard: list[cmd.Command] = []
    told: list[cmd.Command] = []
    async with bus_of(daemon) as bus:
        agent = Emitter(url=url_of(daemon, BusRole.AGENT), node=NODE, role="tool", on_command=heard.append)
        engine = Emitter(url=url_of(daemon, BusRole.ENGINE), node=NODE, role="engine-30000", on_command=told.append)
        agent.start()
        engine.start()
        try:
            await eventually(lambda: agent.stats.connected and engine.stats.connected, what="connections")
            agent.emit(ev.ToolStarted(program_id="run", call_id="call", tool="bash"))
            engine.emit(POOL)
            await bus.status_where(lambda s: s["programs"].get("run", {}).get("open_tools") == 1, "an open tool")
            await bus.publish(f"{NODE}/gate/x", 1, queued("p"))
            await eventually(lambda: any(isinstance(c, cmd.Admit) for c in told), what="grant")
            daemon.kill()
            daemon.start()
            for commands in (told, heard):
                await eventually(
                    lambda c=commands: any(isinstance(each, cmd.StateRequest) for each in c), what="question"
                )
            assert {type(command) for command in heard} == {cmd.StateRequest}
            assert (agent.stats.last_error, engine.stats.last_error) == ("", "")
        finally:
            agent.close()
            engine.close()

    async def passwords() -> list[str]:
        await (await serving(daemon)).close()
        return [url_of(daemon, role).rpartition("@")[0] for role in BusRole]

    before = await passwords()
    assert len(set(before)) == len(BusRole)
    assert daemon.stop() == 0
    daemon.start()
    assert await passwords() == before
    assert (daemon.folder / NODE / "bus-passwords.json").stat().st_mode & 0o777 == 0o600
    assert not any(url.rpartition(":")[2] in daemon.log for url in before)


async def test_a_server_of_an_earlier_version_is_told_the_roles(tmp_path: Path) -> None:
    """It has one user who may do everything; who holds that password loses it, and the stream stays."""
    port, folder = free_port(), tmp_path / NODE
    folder.mkdir()
    settings = folder / "nats-server.conf"
    settings.write_text(
        f"host: 127.0.0.1\nport: {port}\nauthorization {{ user: penstock, password: old }}\n"
        f"jetstream {{ store_dir: {json.dumps(str(folder / 'jetstream'))}, sync_interval: 1s }}\n"
    )
    server = subprocess.Popen([nats_server_binary(), "-c", settings], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    old = f"nats://penstock:old@127.0.0.1:{port}"
    daemon = DaemonProcess(tmp_path)

    try:
        await eventually(lambda: is_listening(port), what="a server")
        async with User.connected(old) as user:
            kept = all_events_subject(NODE).replace(">", "*")
            await user.client.jetstream().add_stream(name=STREAM, subjects=[kept, command_subject(NODE)])
            await user.client.jetstream().publish(
                event_subject(NODE, "gate"), batch(f"{NODE}/gate/x", *queued("p"))
            )
        write_endpoint(NODE, Endpoint(url=old, pid=server.pid, boot_id="b"), tmp_path)
        daemon.start()
        await says(daemon, '"adopted"')
        bus = await serving(daemon)
        assert "p" in (await bus.status())["programs"], "what the stream held"
        endpoint = read_endpoint(NODE, tmp_path)
        assert endpoint is not None
        assert endpoint.pid == server.pid
        assert await answer(old) == b"-ERR 'Authorization Violation'"
        async with User.connected(endpoint.url_of(BusRole.ENGINE)) as engine:
            await engine.says(event_subject(NODE, "engine-1"), batch(f"{NODE}/engine-1/x", POOL))
        await bus.status_where(lambda s: s["status"]["pressure"]["kv_total_blocks"] == 1000, "the pool")
        await bus.close()
        assert daemon.stop() == 0
        assert server.wait(TIMEOUT_S) is not None
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        daemon.clean_up()
