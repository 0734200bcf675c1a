"""A node with a vLLM and an SGLang before one daemon, each killed and started again under load: nothing hangs."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from engine_client import EngineClient, Messages
from engine_kinds import KINDS, SGLANG
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, playing
from engine_server import EngineServer, Launch, environment_of
from engine_versions import on
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model.events import PoolSampled
from controlplane.core.model.places import place_of

PROGRAMS = 4  # at each engine, more than the window lets in
PROMPT_TOKENS = 200
RETRY_S = 0.2
THINK_S = 0.3  # between turns, so that an engine that starts again has some of the machine

pytestmark = [on("vllm"), pytest.mark.timeout(2400)]  # two engines start, and each once more


@pytest.fixture(scope="module")
def sglang(launch: Launch) -> Iterator[EngineServer]:
    """The other engine, whose environment the run of vLLM's tests does not need otherwise."""
    kind = KINDS[SGLANG]
    try:
        environment = environment_of(kind.whole)
    except AssertionError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    yield from launch("sglang", server_class=kind.server_class, environment=environment)


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


async def test_either_goes_on_while_the_other_is_started_again(
    plugin_engine: EngineServer, sglang: EngineServer, bus: Bus
) -> None:
    servers = (plugin_engine, sglang)

    def boots_at(scene: Scene, place: str) -> int:
        return len({each.publisher for each in scene.heard(PoolSampled) if place_of(each.publisher) == place})

    async with playing(plugin_engine, bus, 'preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = 5\n') as scene:
        bus.announce(sglang)
        clients = [scene, EngineClient(sglang, scene._http)]
        await clients[1].mode("governed")
        agents = [Agents(client, label) for client, label in zip(clients, ("at-vllm", "at-sglang"), strict=True)]
        running = [asyncio.create_task(each.run()) for each in agents]
        for each in agents:
            await each.more(PROGRAMS, "turns at both engines")
        for gone, stays in ((1, 0), (0, 1)):
            server, place = servers[gone], f"{NODE}/engine-{servers[gone].port}"
            boots = boots_at(scene, place)
            await asyncio.to_thread(server.kill)
            server.log_path.rename(server.folder / "killed.log")  # other tests count what a start says
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
