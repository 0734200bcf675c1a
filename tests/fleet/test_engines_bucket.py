"""What a fleet's bucket may hold: what cannot be read is not empty, and is written again as it was."""

import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from anyio import create_task_group
from nats.js.kv import KeyValue
from support.daemon_process import eventually
from support.nats import NatsServer

from controlplane.core.model.errors import EngineUnavailable
from controlplane.fleet.buckets import ENGINES, LEADER, LeaderKey, fleet_bucket
from controlplane.fleet.lease import Lease
from controlplane.fleet.registry import Registry
from controlplane.fleet.roster import Engine, Roster, Standing

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


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[KeyValue]:
    async with await nats.connect(nats_server.url) as client:
        yield await fleet_bucket(client, "fleet")


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


async def test_a_list_that_cannot_be_read_removes_nobody(bucket: KeyValue) -> None:
    for what, value in LISTS.items():
        await bucket.put(ENGINES, b"{}")
        await Registry(bucket).put(A, B)
        roster = Roster([A, B])
        registry = await following(bucket, roster, value, lambda it: it.unreadable)
        assert list(roster) == [A, B], what
        with pytest.raises(EngineUnavailable, match="cannot be read"):
            await registry.put(C)
        assert ((await bucket.get(ENGINES)).value or b"") == value, f"{what}: nobody writes over it"


async def test_an_entry_that_cannot_be_read_stays_as_it_was(bucket: KeyValue) -> None:
    for what, entry in ENTRIES.items():
        await bucket.put(ENGINES, b"{}")
        await Registry(bucket).put(A, B)
        roster = Roster([A, B])
        value = json.dumps({A.place: entry, C.place: {**ENTRY, "address": C.address, "rack": 7}}).encode()
        registry = await following(bucket, roster, value, lambda it, r=roster: it.unreadable and r.at(C.place))
        assert list(roster) == [A, C], f"{what}: B was taken out, C was added"
        assert registry.unreadable == f"1 of 2 engines in the fleet's bucket: {A.place}"
        await registry.put(Engine(place=C.place, address=C.address, standing=Standing.DRAINING))
        written = json.loads((await bucket.get(ENGINES)).value or b"")
        assert written[A.place] == entry, "as it was"
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
