"""The fleet's stream over a real NATS server: what it takes of the nodes' streams, live."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from support.daemon_process import eventually
from support.nats import NatsServer

from controlplane.core.model.commands import Command, SetWindow, StateRequest
from controlplane.core.model.events import PoolSampled
from controlplane.fleet import stream
from controlplane.fleet.stream import FleetBus
from controlplane.transport.delivery import delivered
from controlplane.transport.subjects import command_subject, event_subject
from controlplane.wire.codec import decode_commands, decode_events, encode_events

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


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[nats.NATS]:
    async with await nats.connect(nats_server.url) as found:
        yield found


async def publish(client: nats.NATS, publisher: str) -> None:
    node, role, _ = publisher.split("/")
    await client.publish(event_subject(node, role), encode_events(publisher, 1, [(0, SAMPLE)]))
    await delivered(client)


async def comes(wanted: Callable[[], bool], what: str) -> None:
    async def look() -> bool:
        return wanted()

    await eventually(look, what=what)


async def test_it_takes_what_engines_tell_on_the_nodes_that_joined_and_nothing_else(
    nats_server: NatsServer, client: nats.NATS
) -> None:
    async with reading(nats_server.url, "a") as (bus, heard):
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


async def test_who_does_not_lead_reads_the_stream_as_it_is(nats_server: NatsServer, client: nats.NATS) -> None:
    async with (
        reading(nats_server.url, "a"),
        reading(nats_server.url, "b", may_change=lambda: False) as (bus, heard),
    ):
        await publish(client, "a/engine-1/x")
        await comes(lambda: heard == ["a/engine-1/x"], "the leader's node")
        assert bus.missing == frozenset()


async def test_two_daemons_that_make_the_stream_at_one_time_both_begin(
    nats_server: NatsServer, client: nats.NATS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looked before the first had made it, and would begin with the engines' later events."""
    looked: list[str] = []
    look = stream._info

    async def before_it_was_made(jetstream: JetStreamContext, name: str) -> StreamInfo | None:
        looked.append(name)
        return await look(jetstream, name) if len(looked) > 1 else None

    async with reading(nats_server.url, "a") as (_, first):
        await publish(client, "a/engine-1/x")
        await comes(lambda: first == ["a/engine-1/x"], "the first one's event")  # it is in the node's stream
        monkeypatch.setattr(stream, "_info", before_it_was_made)
        async with reading(nats_server.url, "a") as (bus, second):
            await publish(client, "a/engine-1/y")
            await comes(lambda: first == second == ["a/engine-1/x", "a/engine-1/y"], "all that engines told")
            assert bus.missing == frozenset()
    assert looked == ["PENSTOCK-fleet"] * 2


async def test_engines_are_asked_for_their_state_on_their_nodes_without_a_number(
    nats_server: NatsServer, client: nats.NATS
) -> None:
    told: dict[str, list[Command]] = {"a": [], "b": []}
    for node in told:

        async def hear(message: nats.aio.msg.Msg, node: str = node) -> None:
            told[node] += decode_commands(message.data)

        await client.subscribe(command_subject(node), cb=hear)
    await delivered(client)
    async with reading(nats_server.url, "a", "b") as (bus, _):
        window = SetWindow(command_id=7, limit=1, window=1.0, reason="r")
        await bus.send([window, StateRequest(command_id=8, publisher="a/engine-1/x", reason="r")])
        await bus.send([StateRequest(command_id=9, reason="all")])
        await comes(lambda: len(told["a"]) == 2 and len(told["b"]) == 1, "the requests")
    assert told["a"][0] == StateRequest(publisher="a/engine-1/x", reason="r")
    assert told["b"] == [StateRequest(reason="all")]
