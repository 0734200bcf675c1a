"""The lease over a real cluster of three NATS servers: servers die and freeze, and never two lead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.kv import KeyValue
from support.daemon_process import eventually
from support.fleets import Process, nats_cluster, running

from controlplane.core.model.errors import EngineUnavailable
from controlplane.fleet.buckets import LeaderKey, bucket_name, fleet_bucket
from controlplane.fleet.connection import connected
from controlplane.fleet.lease import Lease

FLEET = "fleet"
WAIT_S = 90.0
SLOWEST_S = 900.0  # of a test whose every step may take so long
pytestmark = [
    pytest.mark.timeout(SLOWEST_S),
    # nats-py forgets, unclosed, a connection whose server dies while it is made
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class Contenders:
    """Two leases, each over a connection of its own; ``both``: how often both led."""

    leases: list[Lease]
    both: int = 0

    async def watch(self) -> None:
        while True:
            self.both += sum(lease.leading for lease in self.leases) > 1
            await asyncio.sleep(0.01)

    async def somebody_leads_on(self) -> Lease:
        """Whoever leads then, once it has written: a leader of a moment ago may be one no more."""
        before = {id(lease): lease._held for lease in self.leases}

        async def look() -> list[Lease]:
            return [lease for lease in self.leases if lease.leading and lease._held != before[id(lease)]]

        found: list[Lease] = await eventually(look, what="a leader that writes", timeout_s=WAIT_S)
        return found[0]


@asynccontextmanager
async def contenders(*clients: Client) -> AsyncIterator[Contenders]:
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
        Lease(LeaderKey(await bucket(client)), name, ttl_s=12.0) for client, name in zip(clients, "ab", strict=True)
    ]
    found = Contenders(leases)
    tasks = [asyncio.create_task(work) for work in (*(lease.run() for lease in leases), found.watch())]
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
        async with (
            await connected(url, "test-a") as first,
            await connected(url, "test-b") as second,
            contenders(first, second) as c,
        ):
            leader = await c.somebody_leads_on()

            server = await leading_server(first, cluster)
            follower = next(each for each in cluster if each is not server)
            follower.kill()
            assert await c.somebody_leads_on() is leader
            follower.start()

            server.kill()  # the others elect another one, and the lease outlasts that
            await c.somebody_leads_on()
            server.start()

            frozen = await leading_server(first, cluster)
            frozen.freeze()
            await c.somebody_leads_on()
            frozen.thaw()
            await c.somebody_leads_on()
        assert c.both == 0
