"""The roster follows the EndpointSlices, whatever the API does; against a double of the API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import eventually

from controlplane.core.model.errors import ConfigError
from controlplane.fleet import kube
from controlplane.fleet.kube import Cluster, EndpointWatch
from controlplane.fleet.roster import Engine, Roster, Standing
from fleet.kube_api_double import KubeApiDouble, endpoint, slice_of

A, B = "gpu-0/engine-30000", "gpu-1/engine-30000"


async def until(holds: Callable[[], Any], what: str) -> None:
    async def look() -> Any:
        return holds()

    await eventually(look, what=what)


class Watched:
    """The double, and a watch on it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.api = KubeApiDouble()
        self.roster = Roster()
        self.told = 0
        self.roster.on_change.append(self._count)
        self.token = folder / "token"
        self.token.write_text("first\n")
        self._settings = settings
        self._task: asyncio.Task[None] | None = None

    def _count(self) -> None:
        self.told += 1

    async def start(self) -> None:
        await self.api.start()
        self.watch = EndpointWatch(
            cluster=Cluster(url=f"http://127.0.0.1:{self.api.port}", namespace="llm", token=self.token),
            service="engines",
            roster=self.roster,
            **self._settings,
        )
        self._task = asyncio.create_task(self.watch.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.api.stop()

    @property
    def standings(self) -> dict[str, Standing]:
        return {engine.place: engine.standing for engine in self.roster}

    async def becomes(self, **standings: Standing) -> None:
        wanted = {f"{pod.replace('_', '-')}/engine-30000": standing for pod, standing in standings.items()}
        await until(lambda: self.standings == wanted, f"{wanted}")


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(kube, "_LEAST_DELAY_S", 0.01)
    found = Watched(tmp_path)
    found.api.put(slice_of("engines-1", endpoint("gpu-0", "10.0.0.1"), endpoint("gpu-1", "10.0.0.2")))
    await found.start()
    await found.becomes(gpu_0=Standing.SERVING, gpu_1=Standing.SERVING)
    await until(lambda: found.api.watches, "a watch")
    yield found
    await found.stop()


async def test_pods_join_drain_fall_ill_and_leave(watched: Watched) -> None:
    api = watched.api
    assert watched.watch.is_synced
    assert watched.roster.at(A) == Engine(place=A, address="10.0.0.1:30000")
    starts = endpoint("gpu-2", "10.0.0.3", ready=False)
    ends = endpoint("gpu-1", "10.0.0.2", ready=False, serving=True, terminating=True)
    api.put(slice_of("engines-1", endpoint("gpu-0", "10.0.0.1"), ends, starts))
    await watched.becomes(gpu_0=Standing.SERVING, gpu_1=Standing.DRAINING)
    ill = endpoint("gpu-0", "10.0.0.1", ready=False, serving=False)
    api.put(slice_of("engines-1", ill, endpoint("gpu-2", "10.0.0.3")))
    await watched.becomes(gpu_0=Standing.GONE, gpu_2=Standing.SERVING)
    api.put(slice_of("engines-1", endpoint("gpu-0", "10.0.0.9"), endpoint("gpu-2", "10.0.0.3")))
    await watched.becomes(gpu_0=Standing.SERVING, gpu_2=Standing.SERVING)
    assert watched.roster.at(A) == Engine(place=A, address="10.0.0.9:30000")  # made anew, with another address
    api.delete("engines-1")
    await watched.becomes()
    assert api.lists == 1


async def test_a_watch_that_ends_is_begun_again_where_it_was(watched: Watched) -> None:
    api = watched.api
    api.bookmark()
    api.hang_up()
    api.put(slice_of("engines-2", endpoint("gpu-2", "10.0.0.3")))
    await watched.becomes(gpu_0=Standing.SERVING, gpu_1=Standing.SERVING, gpu_2=Standing.SERVING)
    assert api.lists == 1


@pytest.mark.parametrize("how", ["refused", "within the watch"])
async def test_what_is_too_old_is_listed_again(watched: Watched, how: str) -> None:
    api = watched.api
    api.change_unseen(slice_of("engines-2", endpoint("gpu-2", "10.0.0.3")))
    api.change_unseen(slice_of("engines-1", endpoint("gpu-0", "10.0.0.1")))
    if how == "refused":
        api.forget()
    else:
        api.error(410)
    await watched.becomes(gpu_0=Standing.SERVING, gpu_2=Standing.SERVING)
    assert api.lists == 2


async def test_an_api_that_is_away_changes_nothing_and_is_asked_again(watched: Watched) -> None:
    api, told = watched.api, watched.told
    api.refuses = 3
    api.garbage()  # after which it is listed anew
    await until(lambda: api.lists == 2, "a list after three refusals")
    assert watched.told == told
    port = api.port
    await api.stop()
    api.drop_unseen("engines-1")
    assert len(watched.roster) == 2
    await api.start(port)
    await watched.becomes()


async def test_a_token_that_changed_is_read_again(watched: Watched) -> None:
    watched.api.token = "second"
    watched.api.put(slice_of("engines-2", endpoint("gpu-2", "10.0.0.3")))
    watched.api.hang_up()
    watched.token.write_text("second\n")
    watched.api.put(slice_of("engines-3", endpoint("gpu-3", "10.0.0.4")))
    await until(lambda: len(watched.roster) == 4, "four engines")


async def test_what_others_say_of_an_engine_stays_until_its_pod_changes(watched: Watched) -> None:
    watched.roster.put(Engine(place=A, address="10.0.0.1:30000", standing=Standing.GONE))  # its probe failed
    watched.roster.put(Engine(place="other/engine-1", address="192.0.2.1:1"))
    watched.api.put(slice_of("engines-2", endpoint("gpu-2", "10.0.0.3")))
    await until(lambda: len(watched.roster) == 4, "four engines")
    assert watched.standings[A] is Standing.GONE
    watched.api.delete("engines-1")
    watched.api.delete("engines-2")
    await until(lambda: list(watched.standings) == ["other/engine-1"], "only the one that is no pod")


def read(*told: dict[str, Any]) -> list[kube.Slice]:
    return [kube.msgspec.convert(each, kube.Slice) for each in told]


def test_a_pod_in_several_slices_is_one_engine_of_each_port() -> None:
    ports = [{"name": "rank-0", "port": 30000}, {"name": "rank-1", "port": 30001}, {"name": "x", "protocol": "UDP"}]
    moving = endpoint("gpu-0", "10.0.0.1", ready=False, serving=True, terminating=True)
    slices = read(
        slice_of("b6", endpoint("gpu-0", "fd00::1"), endpoint("gpu-1", "fd00::2"), family="IPv6", ports=ports),
        slice_of("a4", moving, ports=ports),
        slice_of("a5", endpoint("gpu-0", "10.0.0.1"), ports=ports),
        slice_of("nobody"),
    )
    found = kube.engines_of(slices, has_plugin=False)
    assert {place: (it.address, it.standing) for place, it in found.items()} == {
        "gpu-0/engine-30000": ("10.0.0.1:30000", Standing.SERVING),
        "gpu-0/engine-30001": ("10.0.0.1:30001", Standing.SERVING),
        "gpu-1/engine-30000": ("[fd00::2]:30000", Standing.SERVING),
        "gpu-1/engine-30001": ("[fd00::2]:30001", Standing.SERVING),
    }
    assert not any(engine.has_plugin for engine in found.values())
    assert kube.engines_of(slices, port="rank-1").keys() == {"gpu-0/engine-30001", "gpu-1/engine-30001"}


def test_without_conditions_a_pod_is_ready_and_without_a_name_its_address_is_it() -> None:
    bare = {"addresses": ["10.0.0.7"]}
    assert list(kube.engines_of(read(slice_of("s", bare)))) == ["10.0.0.7/engine-30000"]
    assert kube.engines_of(read(slice_of("s", {"addresses": []}))) == {}


def test_the_pods_own_account_and_what_to_do_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the engines in the configuration"):
        Cluster.around({}, tmp_path)
    for name, text in (("token", "t"), ("namespace", "llm\n"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    cluster = Cluster.around(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT_HTTPS": "6443"}, tmp_path
    )
    assert (cluster.url, cluster.namespace) == ("https://[fd00::1]:6443", "llm")
    assert cluster.headers()["Authorization"] == "Bearer t"
