"""A node with a vLLM and an SGLang before one daemon, each killed and started again under load: nothing hangs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_client import EngineClient, Messages
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, opened, play
from engine_server import ROOT, EngineServer
from engine_versions import vllm_only
from support.daemon_process import eventually
from tiny_model import words
from vllm_server import VllmServer

from controlplane.core.events import PoolSampled, place_of

SGLANG = "0.5.21"
PROGRAMS = 4  # at each engine, more than the window lets in
PROMPT_TOKENS = 200
RETRY_S = 0.2
THINK_S = 0.3  # between turns, so that an engine that starts again has some of the machine

pytestmark = [vllm_only, pytest.mark.timeout(1200)]  # two engines start, and each once more


@pytest.fixture(scope="module")
def sglang_env() -> Path:
    """The other engine's environment, which the run of vLLM's tests does not need otherwise."""
    command = [sys.executable, ROOT / "scripts" / "engine_env.py", "--check", "--version", SGLANG]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"needs SGLang beside vLLM: {said.stderr.strip()}: make engine-env")
    assert said.returncode == 0, said.stderr
    return Path(said.stdout.strip())


@pytest.fixture(scope="module")
def mixed_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixed-state")


@pytest.fixture(scope="module")
def mixed(
    engine_env: Path,
    sglang_env: Path,
    tiny_model: Path,
    mixed_state_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EngineServer, EngineServer]]:
    """The vLLM and the SGLang, with the plugin, told of the same node."""
    folder = tmp_path_factory.mktemp("mixed")
    variables = {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(mixed_state_dir)}
    common: dict[str, Any] = {"model": tiny_model, "plugins": ("penstock",), "variables": variables}
    servers = (
        VllmServer(folder / "vllm", environment=engine_env, **common),
        EngineServer(folder / "sglang", environment=sglang_env, **common),
    )
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
def mixed_bus(nats_server: Any, mixed_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, mixed_state_dir, tmp_path))


class Agents:
    """Programs at one engine that go on until they are stopped. An agent repeats a turn that its server cut off."""

    def __init__(self, client: EngineClient, label: str) -> None:
        self._client, self._label = client, label
        self._stops = False
        self.turns = self.cut_off = 0
        self.refused: list[Any] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._program(number) for number in range(PROGRAMS)))

    def stop(self) -> None:
        """After the turns that they are at."""
        self._stops = True

    async def _program(self, number: int) -> None:
        name = f"{self._label}-{number}"
        messages: Messages = [{"role": "user", "content": words(number, PROMPT_TOKENS)}]
        while not self._stops:
            try:
                reply = await self._client.chat(name, messages)
            except (aiohttp.ClientError, OSError):  # its server is gone
                self.cut_off += 1
                await asyncio.sleep(RETRY_S)
                continue
            if reply.status != 200:
                self.refused.append((reply.status, reply.body))
                continue
            self.turns += 1
            more: Messages = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "w7"}]
            messages = [*messages, *more][-20:]
            await asyncio.sleep(THINK_S)

    async def more(self, turns: int, what: str) -> None:
        """That many more turns have ended."""
        until = self.turns + turns

        async def ended() -> bool:
            return self.turns >= until

        await eventually(ended, what=what, timeout_s=TIMEOUT_S)


def test_either_goes_on_while_the_other_is_started_again(
    mixed: tuple[EngineServer, EngineServer], mixed_bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
        clients = [scene, EngineClient(mixed[1].url, scene._http)]
        await clients[1].mode("governed")
        agents = [Agents(client, label) for client, label in zip(clients, ("at-vllm", "at-sglang"), strict=True)]
        running = [asyncio.create_task(each.run()) for each in agents]
        for each in agents:
            await each.more(PROGRAMS, "turns at both engines")
        for gone, stays in ((1, 0), (0, 1)):
            server, place = mixed[gone], f"{NODE}/engine-{mixed[gone].port}"
            boots = boots_at(scene, place)
            await asyncio.to_thread(server.kill)
            await agents[stays].more(3 * PROGRAMS, "turns of the engine that stays, while the other is gone")
            server.start()
            await asyncio.to_thread(server.wait_ready)
            await scene.until(PoolSampled, where=lambda _, place=place, boots=boots: boots_at(scene, place) > boots)
            await agents[gone].more(2 * PROGRAMS, "turns of the engine that came back")
            await agents[stays].more(PROGRAMS, "turns of the engine that stayed")
        for each in agents:
            each.stop()
        await asyncio.wait_for(asyncio.gather(*running), TIMEOUT_S)
        for client, each in zip(clients, agents, strict=True):
            health = await client.penstock()
            assert (health["mode"], health["held_turns"], health["running_turns"]) == ("governed", 0, 0)
            assert each.refused == []
            assert each.cut_off > 0, "each was away once"

    def boots_at(scene: Scene, place: str) -> int:
        return len({each.publisher for each in scene.heard(PoolSampled) if place_of(each.publisher) == place})

    mixed_bus.daemon('preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = 5\n')
    play(story, mixed[0], mixed_bus)
