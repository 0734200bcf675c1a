"""The fleet's stream over real NATS servers: what it takes of the nodes' streams, live, and over a leaf node."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from support.daemon_process import BusClient, eventually
from support.fleets import Process, running
from support.nats import NatsServer, nats_server_binary
from support.ports import free_port

from controlplane.core.commands import Command, SetWindow, StateRequest
from controlplane.core.events import PoolSampled
from controlplane.fleet import stream
from controlplane.fleet.stream import FleetBus
from controlplane.wire.codec import decode_commands, decode_events, encode_events
from controlplane.wire.delivery import delivered
from controlplane.wire.subjects import command_subject, event_subject

pytestmark = pytest.mark.asyncio
FLEET = "fleet"
SAMPLE = PoolSampled(total_blocks=10, free_blocks=10)


@asynccontextmanager
async def reading(url: str, *nodes: str, **options: object) -> AsyncIterator[tuple[FleetBus, list[str]]]:
    """A bus that reads its stream, and the publishers whose batches came."""
    bus = FleetBus(url, FLEET, nodes, **options)  # type: ignore[arg-type]
    await bus.connect()
    heard: list[str] = []

    async def take() -> None:
        while True:
            came = await bus.inbox.take(1.0)
            heard.extend(decode_events(each.data).publisher for each in came if not each.is_command)

    await bus.first_stream()
    await bus.read_from(1)
    task = asyncio.create_task(take())
    try:
        yield bus, heard
    finally:
        task.cancel()
        await bus.close()


async def publish(client: nats.NATS, publisher: str) -> None:
    node, role, _ = publisher.split("/")
    await client.publish(event_subject(node, role), encode_events(publisher, 1, [(0, SAMPLE)]))
    await delivered(client)


async def comes(wanted: Callable[[], bool], what: str) -> None:
    async def look() -> bool:
        return wanted()

    await eventually(look, what=what)


async def test_it_takes_what_engines_tell_on_the_nodes_that_joined_and_nothing_else(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    client = await nats.connect(server.url)
    try:
        async with reading(server.url, "a") as (bus, heard):
            await publish(client, "b/engine-1/before")  # nobody keeps it: b is not of the fleet yet
            for publisher in ("a/gate-1/x", "a/host/x", "a/tool/x", "b/engine-1/x"):
                await publish(client, publisher)
            for publisher in ("a/engine/x", "a/engine-1/x", "a/engine-2-dp1/x", "fleet/gate-fleet/x"):
                await publish(client, publisher)
            await comes(lambda: len(heard) >= 4, "four publishers")
            assert sorted(heard) == ["a/engine-1/x", "a/engine-2-dp1/x", "a/engine/x", "fleet/gate-fleet/x"]

            await bus.join(["a", "b"])
            await publish(client, "b/engine-1/joined")
            await comes(lambda: "b/engine-1/joined" in heard, "the node that joined")
            assert "b/engine-1/before" not in heard

            await bus.join(["b"])
            await publish(client, "a/engine-1/left")
            await publish(client, "b/engine-1/again")
            await comes(lambda: "b/engine-1/again" in heard, "the one that stayed")
            assert "a/engine-1/left" not in heard
            # The node's stream is as its own daemon would have made it.
            info = await client.jetstream().stream_info("PENSTOCK-b")
            assert info.config.no_ack
            assert info.config.subjects == ["penstock.v1.b.event.>", "penstock.v1.b.command"]
    finally:
        await client.close()
        server.kill()


async def test_who_does_not_lead_reads_the_stream_as_it_is(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    client = await nats.connect(server.url)
    try:
        async with reading(server.url, "a"), reading(server.url, "b", may_change=lambda: False) as (bus, heard):
            await publish(client, "a/engine-1/x")
            await comes(lambda: heard == ["a/engine-1/x"], "the leader's node")
            assert bus.missing == frozenset()
    finally:
        await client.close()
        server.kill()


async def test_two_daemons_that_make_the_stream_at_one_time_both_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looked before the first had made it, and would begin with the engines' later events."""
    server = NatsServer(tmp_path)
    client = await nats.connect(server.url)
    looked: list[str] = []
    look = stream._info

    async def before_it_was_made(jetstream: JetStreamContext, name: str) -> StreamInfo | None:
        looked.append(name)
        return await look(jetstream, name) if len(looked) > 1 else None

    try:
        async with reading(server.url, "a") as (_, first):
            await publish(client, "a/engine-1/x")
            await comes(lambda: first == ["a/engine-1/x"], "the first one's event")  # it is in the node's stream
            monkeypatch.setattr(stream, "_info", before_it_was_made)
            async with reading(server.url, "a") as (bus, second):
                await publish(client, "a/engine-1/y")
                await comes(lambda: first == second == ["a/engine-1/x", "a/engine-1/y"], "all that engines told")
                assert bus.missing == frozenset()
        assert looked == ["PENSTOCK-fleet"] * 2
    finally:
        await client.close()
        server.kill()


async def test_engines_are_asked_for_their_state_on_their_nodes_without_a_number(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    client = await nats.connect(server.url)
    told: dict[str, list[Command]] = {"a": [], "b": []}
    try:
        for node in told:

            async def hear(message: nats.aio.msg.Msg, node: str = node) -> None:
                told[node] += decode_commands(message.data)

            await client.subscribe(command_subject(node), cb=hear)
        await delivered(client)
        async with reading(server.url, "a", "b") as (bus, _):
            window = SetWindow(command_id=7, limit=1, window=1.0, reason="r")
            await bus.send([window, StateRequest(command_id=8, publisher="a/engine-1/x", reason="r")])
            await bus.send([StateRequest(command_id=9, reason="all")])
            await comes(lambda: len(told["a"]) == 2 and len(told["b"]) == 1, "the requests")
        assert told["a"][0] == StateRequest(publisher="a/engine-1/x", reason="r")
        assert told["b"] == [StateRequest(reason="all")]
    finally:
        await client.close()
        server.kill()


async def test_a_leaf_node_keeps_its_own_stream_in_its_own_domain(tmp_path: Path) -> None:
    hub, leaf = _hub_and_leaf(tmp_path)
    with running(hub[1], leaf[1]):
        client = await _connected(leaf[0])
        try:
            # The node's daemon makes the node's stream, on its own server.
            node = BusClient(client, "east")
            await (await _connected(hub[0])).close()  # it listens
            own = FleetBus(leaf[0], "east")
            await own.connect()
            await own.first_stream()
            async with reading(hub[0], "east", domains={"east": "east"}) as (bus, heard):

                async def joined() -> bool:
                    await bus.join(["east"])
                    return not bus.missing

                await eventually(joined, what="the leaf node's stream")

                async def arrives() -> bool:
                    await publish(node.client, "east/engine-1/x")
                    return "east/engine-1/x" in heard

                await eventually(arrives, what="an event of the leaf node's engine")
                at_hub = await _connected(hub[0])
                streams = await at_hub.jetstream().streams_info()
                await at_hub.close()
                assert [each.config.name for each in streams] == ["PENSTOCK-fleet"]
            await own.close()
        finally:
            await client.close()


def _hub_and_leaf(folder: Path) -> tuple[tuple[str, Process], tuple[str, Process]]:
    hub_port, leaf_port, join_port = free_port(), free_port(), free_port()
    hub = {"port": hub_port, "server_name": "hub", "leafnodes": {"listen": f"127.0.0.1:{join_port}"}}
    leaf = {
        "port": leaf_port,
        "server_name": "leaf",
        "leafnodes": {"remotes": [{"url": f"nats-leaf://127.0.0.1:{join_port}"}]},
    }
    made = []
    for name, domain, settings in (("hub", "hub", hub), ("leaf", "east", leaf)):
        path = folder / f"{name}.conf"
        jetstream = {"store_dir": str(folder / name), "domain": domain}
        path.write_text(json.dumps({"host": "127.0.0.1", "jetstream": jetstream, **settings}))
        process = Process(name, [str(nats_server_binary()), "-c", str(path)], folder)
        made.append((f"nats://127.0.0.1:{settings['port']}", process))
    return made[0], made[1]


async def _connected(url: str) -> nats.NATS:
    async def connect() -> nats.NATS | None:
        try:
            return await nats.connect(url, allow_reconnect=False, connect_timeout=1)
        except (OSError, nats.errors.Error):
            return None

    found: nats.NATS = await eventually(connect, what=f"a server at {url}")
    return found
