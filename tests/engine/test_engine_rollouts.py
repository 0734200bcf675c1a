"""SkyRL's own rollout loop on the real vLLM with a tiny model: it sends tokens, and pauses the engine to sync."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from engine_scene import FCFS, Bus, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from support.agent_runs import python_of, run_agent

from controlplane.core.model.events import CacheFlushed, ProgramEnded, TurnEnded, TurnQueued

pytestmark = on("vllm")
PROMPTS, SAMPLES, TURNS = 2, 4, 3


@pytest.fixture(scope="module")
def engine_for_tokens(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("tokens", "--enable-scale-out")


async def test_rollouts_their_groups_and_weight_syncs(engine_for_tokens: EngineServer, bus: Bus) -> None:
    async with playing(engine_for_tokens, bus, FCFS) as scene:
        told = {"prompts": PROMPTS, "samples": SAMPLES, "turns": TURNS, "tool_s": 0.2, "until": 0}
        told |= {"url": scene.url, "servers": [scene.url], "model": "tiny"}
        run = (run_agent, python_of("trainer"), "skyrl_run.py", told, bus.server.url)
        said = await asyncio.to_thread(*run, PENSTOCK_NODE=engine_for_tokens.variables["PENSTOCK_NODE"])
        await scene.until(ProgramEnded, PROMPTS * SAMPLES, reason="finished")
        await scene.until(TurnEnded, PROMPTS * SAMPLES * TURNS, ok=True)
        await scene.until(CacheFlushed, said["syncs"])

        turns = defaultdict(list)
        for event in scene.heard(TurnEnded):
            turns[event.program_id].append(event)
        assert {program: len(ended) for program, ended in turns.items()} == {
            event.program_id: TURNS for event in scene.heard(ProgramEnded, reason="finished")
        }
        groups = {event.program_id: (event.group_id, event.group_size) for event in scene.heard(TurnQueued)}
        assert Counter(groups.values()) == {(name, SAMPLES): SAMPLES for name, _ in groups.values()}
