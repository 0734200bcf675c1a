"""The lease over a real cluster of three NATS servers: servers die and freeze, and never two lead."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.kv import KeyValue
from support.daemon_process import eventually
from support.fleets import Process, nats_cluster, running

from controlplane.core.errors import EngineUnavailable
from controlplane.fleet.buckets import LeaderKey, bucket_name, fleet_bucket
from controlplane.fleet.connection import connected
from controlplane.fleet.lease import Lease

FLEET = "fleet"
WAIT_S = 90.0
SLOWEST_S = 900.0  # of a test whose every step may take so long
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(SLOWEST_S),
    # nats-py forgets, unclosed, a connection whose server dies while it is made
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Contenders:
    """Two leases, each over a connection of its own; ``both``: how often both led."""

    def __init__(self, clients: list[Client], leases: list[Lease]) -> None:
        self.clients, self.leases = clients, leases
        self.both = 0

    def watch(self) -> None:
        self.both += sum(lease.leading for lease in self.leases) > 1

    async def one_leads(self) -> Lease:
        async def look() -> list[Lease]:
            return [lease for lease in self.leases if lease.leading]

        found: list[Lease] = await eventually(look, what="a leader", timeout_s=WAIT_S)
        return found[0]

    async def renews(self, lease: Lease) -> None:
        """Return once it has written again."""
        before = lease._held

        async def look() -> bool:
            return lease._held is not None and lease._held != before

        await eventually(look, what="a renewal", timeout_s=WAIT_S)

    async def somebody_leads_on(self) -> None:
        """Return once whoever leads then has written: a leader of a moment ago may be one no more."""
        before = {id(lease): lease._held for lease in self.leases}

        async def look() -> bool:
            return any(lease.leading and lease._held != before[id(lease)] for lease in self.leases)

        await eventually(look, what="a leader that writes", timeout_s=WAIT_S)


@asynccontextmanager
async def contenders(url: str, *, ttl_s: float) -> AsyncIterator[Contenders]:
    async with (
        await connected(url, "test-a") as first,
        await connected(url, "test-b") as second,
        _contending([first, second], ttl_s=ttl_s) as found,
    ):
        yield found


@asynccontextmanager
async def _contending(clients: list[Client], *, ttl_s: float) -> AsyncIterator[Contenders]:

    async def bucket(client: Client) -> KeyValue:
        """As soon as the server that this client is at knows whom to ask: a cluster has only just been started."""

        async def made() -> KeyValue | None:
            try:
                return await fleet_bucket(client, FLEET)
            except EngineUnavailable:
                return None

        found: KeyValue = await eventually(made, what="a bucket", timeout_s=WAIT_S)
        return found

    leases = [
        Lease(LeaderKey(await bucket(client)), name, ttl_s=ttl_s)
        for client, name in zip(clients, "ab", strict=True)
    ]
    found = Contenders(clients, leases)

    async def watch() -> None:
        while True:
            found.watch()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(work) for work in (*(lease.run() for lease in leases), watch())]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()


async def leading_server(client: Client, cluster: list[Process]) -> Process:
    """The one that leads the bucket's stream."""
    info = await client.jetstream().stream_info(f"KV_{bucket_name(FLEET)}")
    assert info.cluster is not None and info.config.num_replicas == 3
    return next(server for server in cluster if server.name == info.cluster.leader)


async def test_servers_die_and_freeze_and_never_two_lead(tmp_path: Path) -> None:
    url, cluster = nats_cluster(tmp_path)
    with running(*cluster):
        async with contenders(url, ttl_s=12.0) as c:
            leader = await c.one_leads()
            await c.renews(leader)

            server = await leading_server(c.clients[0], cluster)
            follower = next(each for each in cluster if each is not server)
            follower.kill()
            await c.renews(leader)
            follower.start()

            server.kill()  # the others elect another one, and the lease outlasts that
            await c.somebody_leads_on()
            server.start()

            frozen = await leading_server(c.clients[0], cluster)
            frozen.send(signal.SIGSTOP)
            await c.somebody_leads_on()
            frozen.send(signal.SIGCONT)
            await c.somebody_leads_on()
        assert c.both == 0


async def test_a_leader_that_hands_over_is_replaced_at_once_and_the_fence_grows(tmp_path: Path) -> None:
    url, cluster = nats_cluster(tmp_path)
    with running(*cluster):
        async with contenders(url, ttl_s=600.0) as c:
            leader = await c.one_leads()
            (other,) = [lease for lease in c.leases if lease is not leader]
            await c.renews(leader)
            await leader.hand_over()
            assert await c.one_leads() is other
            assert other.fence > leader.fence
        assert c.both == 0
