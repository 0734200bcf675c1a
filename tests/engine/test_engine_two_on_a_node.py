"""Two engines of one node: both are served, and either goes on when the other has gone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import EngineClient
from engine_scene import NODE, Bus, Scene, opened, play
from engine_server import EngineServer

from controlplane.core.events import PoolSampled, TurnEnded, place_of

PROGRAMS = 3  # at each engine


@pytest.fixture(scope="module")
def pair_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair-state")


@pytest.fixture(scope="module")
def pair(
    engine_env: Path, tiny_model: Path, pair_state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[EngineServer]]:
    """Two engines with the plugin, told of the same node."""
    servers = [
        EngineServer(
            tmp_path_factory.mktemp(f"engine-{number}"),
            environment=engine_env,
            model=tiny_model,
            plugins=("penstock",),
            variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(pair_state_dir)},
        )
        for number in range(2)
    ]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def pair_bus(nats_server: Any, pair_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, pair_state_dir, tmp_path))


def test_both_are_served_and_the_first_goes_on_when_the_second_has_gone(
    pair: list[EngineServer], pair_bus: Bus
) -> None:
    """A rolling restart, or two engines on a host: the newcomer takes nothing from who is there."""
    first, second = pair

    async def turns(client: EngineClient, label: str) -> None:
        for _ in range(2):
            names = [f"{label}-{number}" for number in range(PROGRAMS)]
            replies = await asyncio.gather(*(client.chat(name, f"{name} says it") for name in names))
            assert [reply.status for reply in replies] == [200] * PROGRAMS

    async def story(scene: Scene) -> None:
        other = EngineClient(second.url, scene._http)
        await other.mode("governed")
        await scene.until(PoolSampled, count=2)
        await asyncio.gather(turns(scene, "at-first"), turns(other, "at-second"))
        for label in ("at-first", "at-second"):
            ended = [await scene.until(TurnEnded, program_id=f"{label}-{number}") for number in range(PROGRAMS)]
            assert {place_of(each.publisher) for each in ended} == {
                f"{NODE}/engine-{(first if label == 'at-first' else second).port}"
            }
        await asyncio.to_thread(second.kill)
        await turns(scene, "after")
        assert [reply.status for reply in [await scene.chat("at-first-0", "at-first-0 says it again")]] == [200]

    pair_bus.daemon('preset = "mars"\n')
    play(story, first, pair_bus)
