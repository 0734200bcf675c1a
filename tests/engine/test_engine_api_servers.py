"""Several API servers before one vLLM: as many gates, and one admission."""

import asyncio
from collections.abc import Iterator

import pytest
from engine_load import PROMPT_TOKENS
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from support.daemon_process import eventually
from tiny_model import words
from vllm_server import ServeCommand

from controlplane.core.model.events import TurnEnded, TurnQueued, TurnSubmitted
from controlplane.core.model.places import place_of

SERVERS, WINDOW, PROGRAMS, TURNS = 2, 2, 8, 4

pytestmark = on("vllm")


@pytest.fixture(scope="module")
def servers(launch: Launch) -> Iterator[EngineServer]:
    """The engine with two API servers and the plugin."""
    yield from launch("servers", "--api-server-count", str(SERVERS), server_class=ServeCommand)


async def all_governed(scene: Scene) -> list[str]:
    """The roles of the gates, once each of them hears the daemon; a request meets one or the other."""
    modes: dict[str, str] = {}

    async def look() -> bool:
        health = await scene.penstock()
        assert health["plugin"]["passive_because"] == ""
        modes[health["plugin"]["role"]] = health["mode"]
        return len(modes) == SERVERS and set(modes.values()) == {"governed"}

    await eventually(look, what="two gates that are governed", timeout_s=TIMEOUT_S)
    return sorted(modes)


def most_at_once(scene: Scene) -> int:
    """How many programs had a turn in the engine at once, by the engine's own clock."""
    begun = [(event.at_ns, 1) for event in scene.heard(TurnSubmitted)]
    ended = [(event.at_ns, -1) for event in scene.heard(TurnEnded)]
    running = most = 0
    for _, by in sorted(begun + ended):
        running += by
        most = max(most, running)
    return most


async def test_the_daemon_admits_programs_over_all_of_them(servers: EngineServer, bus: Bus) -> None:
    async def program(scene: Scene, name: str, seed: int) -> None:
        messages = [{"role": "user", "content": words(seed, PROMPT_TOKENS)}]
        for turn in range(TURNS):
            reply = await scene.chat(name, messages, is_last_step=turn == TURNS - 1)
            assert reply.status == 200
            messages = [*messages, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "w5"}]

    async with playing(
        servers, bus, f'preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = {WINDOW}\n'
    ) as scene:
        roles = await all_governed(scene)
        assert roles == [f"gate-{servers.port}-{number}" for number in range(SERVERS)]
        names = [f"over-all-{number}" for number in range(PROGRAMS)]
        await asyncio.gather(*(program(scene, name, 600 + number) for number, name in enumerate(names)))
        await scene.until(TurnEnded, count=PROGRAMS * TURNS)
        asked = scene.heard(TurnQueued)
        assert {place_of(event.publisher) for event in asked} == {f"{NODE}/{role}" for role in roles}
        assert most_at_once(scene) == WINDOW
        # Who was let in at one gate passes at the other: it asks for its first turn, and for a later one only where
        # a busy machine's gate has not heard of the grant by then.
        again = len({event.turn_id for event in asked}) - PROGRAMS
        assert 0 <= again <= PROGRAMS * (TURNS - 1) // 4
