"""The leader writes itself into the one endpoint of its Service; against a double of the Kubernetes API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.daemon_process import eventually

from controlplane.fleet import kube_leader
from controlplane.fleet.kube import Cluster
from controlplane.fleet.kube_leader import REVISION, LeaderEndpoint
from fleet.kube_api_double import KubeApiDouble, slice_of

SLICE = "fleet-leader"


class Pods:
    """Two pods of a fleet, and the revision of the lease that each believes to have."""

    def __init__(self, api: KubeApiDouble, token: Path) -> None:
        self.api = api
        self.cluster = Cluster(url=f"http://127.0.0.1:{api.port}", namespace="llm", token=token)
        self.revisions: dict[str, int | None] = {"a": None, "b": None}
        self.endpoints: dict[str, LeaderEndpoint] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, address: str) -> None:
        self.endpoints[name] = endpoint = LeaderEndpoint(
            cluster=self.cluster,
            slice_name=SLICE,
            pod=name,
            address=address,
            revision=lambda: self.revisions[name],
        )
        self._tasks.append(asyncio.create_task(endpoint.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def points_at(self, address: str, revision: int) -> None:
        async def look() -> bool:
            published = self.api.get(SLICE)
            found = [each["addresses"] for each in published["endpoints"] or ()]
            return found == [[address]] and published["metadata"]["annotations"][REVISION] == str(revision)

        await eventually(look, what=f"endpoint {address} of revision {revision}")


@pytest.fixture
async def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    monkeypatch.setattr(kube_leader, "_LOOK_S", 0.01)
    monkeypatch.setattr(kube_leader, "_ASSERT_S", 0.05)
    (tmp_path / "token").write_text("first")
    api = KubeApiDouble()
    await api.start()
    api.put(slice_of(SLICE, ports=[{"name": "grpc-picker", "port": 9002}]))
    found = Pods(api, tmp_path / "token")
    found.start("a", "10.0.0.1")
    found.start("b", "10.0.0.2")
    yield found
    await found.stop()
    await api.stop()


async def test_who_leads_is_the_one_endpoint_and_the_next_leader_takes_its_place(pods: Pods) -> None:
    pods.revisions["a"] = 7
    await pods.points_at("10.0.0.1", 7)
    pods.revisions.update(a=None, b=9)
    await pods.points_at("10.0.0.2", 9)
    assert pods.api.get(SLICE)["ports"] == [{"name": "grpc-picker", "port": 9002}]


async def test_a_leader_that_was_overtaken_cannot_write_over_the_younger_one(pods: Pods) -> None:
    pods.revisions["b"] = 9
    await pods.points_at("10.0.0.2", 9)
    pods.revisions["a"] = 7  # frozen for a while, it believes that it leads
    await asyncio.sleep(0.2)
    await pods.points_at("10.0.0.2", 9)
    assert pods.endpoints["a"].published is None


async def test_who_looked_before_the_younger_leader_wrote_is_refused_by_the_api(pods: Pods) -> None:
    def overtake() -> None:
        pods.api.before_write = lambda: None
        published = slice_of(SLICE)
        published["metadata"]["annotations"] = {REVISION: "9"}
        pods.api.put(published)

    pods.api.before_write = overtake
    pods.revisions["a"] = 7

    async def looked() -> bool:
        return pods.api.get(SLICE)["metadata"].get("annotations") == {REVISION: "9"}

    await eventually(looked, what="a younger leader")
    await asyncio.sleep(0.1)
    assert pods.api.get(SLICE)["endpoints"] is None
    assert pods.endpoints["a"].published is None


async def test_what_somebody_else_changed_is_put_right(pods: Pods) -> None:
    pods.revisions["a"] = 7
    await pods.points_at("10.0.0.1", 7)
    pods.api.refuses = 2
    pods.api.put(slice_of(SLICE))  # applied again by whoever deploys
    await pods.points_at("10.0.0.1", 7)


async def test_where_the_bus_counts_anew_the_leader_is_told_after_a_while(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods.revisions["b"] = 9
    await pods.points_at("10.0.0.2", 9)
    monkeypatch.setattr(kube_leader, "_NEW_COUNT_S", 0.2)
    pods.revisions.update(a=1, b=None)
    await pods.points_at("10.0.0.1", 1)
