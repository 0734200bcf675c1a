"""What a fleet's bucket may hold: what cannot be read is not empty, and is written again as it was."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from anyio import create_task_group
from nats.js.kv import KeyValue
from support.daemon_process import eventually
from support.nats import NatsServer

from controlplane.core.errors import EngineUnavailable
from controlplane.fleet.buckets import ENGINES, LEADER, LeaderKey, fleet_bucket
from controlplane.fleet.lease import Lease
from controlplane.fleet.registry import Registry
from controlplane.fleet.roster import Engine, Roster, Standing

pytestmark = pytest.mark.asyncio
A = Engine(place="a/engine-1", address="10.0.0.1:1")
B = Engine(place="b/engine-1", address="10.0.0.2:1")
C = Engine(place="c/engine-1", address="10.0.0.3:1")
ENTRY = {"address": "10.0.0.1:1", "plugin": True, "pool_tokens": 0, "drains": False}
# The list as a whole, and one entry in it, as something else than this version writes.
LISTS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "pairs": b'[["a/engine-1", {}]]',
    "null": b"null",
    "too deep": b"[" * 100_000,
}
ENTRIES: dict[str, Any] = {
    "null": None,
    "text": "10.0.0.1:1",
    "no address": {"plugin": True},
    "two addresses": {**ENTRY, "address": ["10.0.0.1:1", "10.0.0.1:2"]},
    "another scheme": {**ENTRY, "address": "unix:/run/engine"},
    "pool by tier": {**ENTRY, "pool_tokens": {"device": 1}},
    "an endless pool": {**ENTRY, "pool_tokens": float("inf")},
}


@pytest_asyncio.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[KeyValue]:
    server = NatsServer(tmp_path / "nats")
    client = await nats.connect(server.url)
    try:
        yield await fleet_bucket(client, "fleet")
    finally:
        await client.close()
        server.kill()


async def following(bucket: KeyValue, roster: Roster, value: bytes | None, until: Any) -> Registry:
    """Follow the bucket from before it has the value (None: it is deleted) until that was read."""
    registry = Registry(bucket)
    async with create_task_group() as tasks:
        tasks.start_soon(registry.follow, roster)
        await (bucket.put(ENGINES, value) if value is not None else bucket.delete(ENGINES))

        async def look() -> Any:
            return until(registry)

        await eventually(look, what="another reading")
        tasks.cancel_scope.cancel()
    return registry


@pytest.mark.parametrize("what", LISTS)
async def test_a_list_that_cannot_be_read_removes_nobody(bucket: KeyValue, what: str) -> None:
    roster = Roster([A, B])
    await Registry(bucket).put(A, B)
    registry = await following(bucket, roster, LISTS[what], lambda it: it.unreadable == 1)
    assert list(roster) == [A, B]
    with pytest.raises(EngineUnavailable, match="cannot be read"):
        await registry.put(C)
    found = await bucket.get(ENGINES)
    assert (found.value or b"") == LISTS[what], "nobody writes over it"


@pytest.mark.parametrize("what", ENTRIES)
async def test_an_entry_that_cannot_be_read_stays_as_it_was(bucket: KeyValue, what: str) -> None:
    roster = Roster([A, B])
    value = {A.place: ENTRIES[what], C.place: {**ENTRY, "address": C.address, "rack": 7}}
    registry = await following(
        bucket, roster, json.dumps(value).encode(), lambda it: it.unreadable == 1 and roster.at(C.place)
    )
    assert list(roster) == [A, C], "B was taken out, C was added"
    await registry.put(Engine(place=C.place, address=C.address, standing=Standing.DRAINING))
    written = json.loads((await bucket.get(ENGINES)).value or b"")
    assert written[A.place] == ENTRIES[what], "as it was"
    assert (written[C.place]["rack"], written[C.place]["drains"]) == (7, True), "a newer version's field stays"
    await registry.remove(A.place)
    assert A.place not in json.loads((await bucket.get(ENGINES)).value or b"")


async def test_a_list_that_is_deleted_removes_nobody_and_an_empty_one_all(bucket: KeyValue) -> None:
    roster = Roster([A])
    await Registry(bucket).put(A)
    seen: list[int] = []
    await following(bucket, roster, None, lambda it: seen.append(1) or len(seen) > 150)
    assert list(roster) == [A]
    await following(bucket, roster, b"{}", lambda it: not len(roster))


async def test_a_lease_that_somebody_deletes_is_no_free_one(bucket: KeyValue) -> None:
    leader, other = (Lease(LeaderKey(bucket), name, ttl_s=60.0) for name in ("one", "other"))
    await leader.step()
    assert leader.leading
    await bucket.delete(LEADER)
    await other.step()
    assert leader.leading and not other.leading
