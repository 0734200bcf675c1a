"""A second engine, by itself and on the node of the first: both are served, and the first goes on without it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import EngineClient
from engine_idle import ends, obeys
from engine_scene import NODE, Bus, Scene, opened, play
from engine_server import EngineServer, serving

from controlplane.core.events import PoolSampled, TurnEnded, place_of

PROGRAMS = 3  # at each engine


@pytest.fixture(scope="module")
def second_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``second_engine`` looks for its bus."""
    return tmp_path_factory.mktemp("second-state")


@pytest.fixture(scope="module")
def second_engine(
    engine_env: Path, tiny_model: Path, second_state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """SGLang as it is without a flag: its idle scheduler goes round without a pause."""
    server = EngineServer(
        tmp_path_factory.mktemp("second"),
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(second_state_dir)},
        sleeps=False,
    )
    yield from serving(server)


@pytest.fixture
def second_bus(nats_server: Any, second_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    """The test's bus, of which the second engine is told."""
    yield from opened(Bus(nats_server, second_state_dir, tmp_path))


def test_an_engine_that_never_sleeps_obeys_and_lets_go_at_once(
    second_engine: EngineServer, second_bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
        await obeys(952)(scene)
        await ends(953)(scene)

    second_bus.daemon()
    play(story, second_engine, second_bus)


def test_both_are_served_and_the_first_goes_on_when_the_second_has_gone(
    plugin_engine: EngineServer, bus: Bus, second_engine: EngineServer, second_bus: Bus
) -> None:
    """A rolling restart, or two engines on a host: the newcomer takes nothing from who is there."""

    async def turns(client: EngineClient, label: str) -> None:
        for _ in range(2):
            names = [f"{label}-{number}" for number in range(PROGRAMS)]
            replies = await asyncio.gather(*(client.chat(name, f"{name} says it") for name in names))
            assert [reply.status for reply in replies] == [200] * PROGRAMS

    async def story(scene: Scene) -> None:
        other = EngineClient(second_engine.url, scene._http)
        before = await other.boot_id()
        second_bus.announce()
        await other.governed_anew(before)
        places = {label: f"{NODE}/engine-{engine.port}" for label, engine in engines.items()}
        for place in places.values():
            await scene.until(PoolSampled, where=lambda event, place=place: place_of(event.publisher) == place)
        await asyncio.gather(turns(scene, "at-first"), turns(other, "at-second"))
        for label, place in places.items():
            ended = [await scene.until(TurnEnded, program_id=f"{label}-{number}") for number in range(PROGRAMS)]
            assert {place_of(each.publisher) for each in ended} == {place}
        await asyncio.to_thread(second_engine.kill)
        await turns(scene, "after")
        assert [reply.status for reply in [await scene.chat("at-first-0", "at-first-0 says it again")]] == [200]

    engines = {"at-first": plugin_engine, "at-second": second_engine}
    bus.daemon('preset = "mars"\n')
    play(story, plugin_engine, bus)
