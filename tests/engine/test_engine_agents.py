"""Agents on an engine with room for them, in pages of 16 tokens: OpenHands, and a client that names nobody."""

import asyncio
import itertools
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import FCFS, Bus, Scene, playing
from engine_server import EngineServer, Launch
from engine_versions import on
from support.agent_runs import python_of, run_agent
from support.scripted_model import Reply, ScriptedModel
from tiny_model import words

from controlplane.core.model.commands import Discard, Retain
from controlplane.core.model.events import (
    FirstToken,
    HostSampled,
    PoolSampled,
    ProgramArrived,
    ProgramEnded,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds

pytestmark = on("sglang")
POOL_TOKENS = 16_000  # for an agent's system prompt
PAGE_TOKENS = 16
KEPT_TOKENS = PROMPT_TOKENS // PAGE_TOKENS * PAGE_TOKENS  # only whole pages stay in the cache
TURN_PAGES = ceil((PROMPT_TOKENS + 8) / PAGE_TOKENS)  # of a first turn, with its output
MARS = 'preset = "mars"\n'
SLACK_NS = 20_000_000


def call(tool: str, **arguments: str) -> list[tuple[str, dict[str, Any]]]:
    return [(tool, {**arguments, "security_risk": "LOW", "summary": "-"})]


SCRIPTS: dict[str, list[Reply]] = {
    "please begin": [
        call("terminal", command="sleep 0.2"),
        call("task", prompt="help with it", subagent_type="helper", description="help"),
        [("finish", {"message": "done"})],
    ],
    "help with it": [call("terminal", command="sleep 0.2"), [("finish", {"message": "done"})]],
}


@pytest.fixture(scope="module")
def roomy_engine(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("roomy", *("--page-size", str(PAGE_TOKENS)), pool_tokens=POOL_TOKENS)


async def test_turns_and_tools_of_an_agent_and_its_sub_agent(
    roomy_engine: EngineServer, bus: Bus, tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    told = {"workspace": str(tmp_path / "workspace"), "message": "please begin"}
    async with playing(roomy_engine, bus, MARS) as scene:
        await scene.until(HostSampled)
        with ScriptedModel(SCRIPTS, upstream=scene.url) as model:
            said = await asyncio.to_thread(
                run_agent,
                python_of("openhands"),
                "openhands_run.py",
                told | {"url": model.url},
                bus.server.url,
                PENSTOCK_NODE=roomy_engine.variables["PENSTOCK_NODE"],
            )
        parent = said["conversation"]
        await scene.until(ProgramEnded, program_id=parent)
        arrived = {event.program_id: event.parent_id for event in scene.heard(ProgramArrived)}
        (child,) = set(arrived) - {parent}
        assert arrived == {parent: "", child: parent}
        for program, turns in ((parent, 3), (child, 2)):
            await scene.until(TurnEnded, turns, program_id=program, ok=True)
            goes_on(scene, program, turns)
        health = await scene.penstock()
        assert health["plugin"]["hook_failures"] == {}
        assert (health["held_turns"], health["running_turns"]) == (0, 0)


def goes_on(scene: Scene, program: str, turns: int) -> None:
    """Turn, tool, turn: one after the other, on one machine's clock; and later turns find their context."""
    submitted, ended = scene.heard(TurnSubmitted, program_id=program), scene.heard(TurnEnded, program_id=program)
    began, done = scene.heard(ToolStarted, program_id=program), scene.heard(ToolEnded, program_id=program)
    assert len(submitted) == len(ended) == len(began) == len(done) == turns
    for one, start, end, following in zip(ended, began, done, submitted[1:], strict=False):
        assert one.at_ns - SLACK_NS < start.at_ns < end.at_ns < following.at_ns + SLACK_NS
    for before, after in itertools.pairwise(ended):
        assert after.cached_tokens >= 0.9 * before.prompt_tokens > 100


async def test_a_client_that_names_nobody_is_known_by_how_its_prompt_goes_on(
    roomy_engine: EngineServer, bus: Bus
) -> None:
    def said(role: str, seed: int, count: int = 300) -> dict[str, str]:
        return {"role": role, "content": words(seed, count)}

    async with playing(roomy_engine, bus, MARS) as scene:
        first, other = [said("user", 1)], [said("user", 2)]
        for messages in (first, other, [*first, said("assistant", 3, 20), said("user", 4)], [said("user", 5)]):
            assert (await scene.chat("", messages)).status == 200
        await scene.until(TurnEnded, 4, where=lambda event: event.program_id.startswith("continued-"))
        ended = [event for event in scene.heard(TurnEnded) if event.program_id.startswith("continued-")]
        one, two, again, three = (event.program_id for event in ended)
        assert again == one
        assert len({one, two, three}) == 3
        found = 300 // PAGE_TOKENS * PAGE_TOKENS
        assert ended[2].cached_tokens >= found, "its context, as that of a program that is known"
        for program in (one, two, three):
            await scene.publish(ProgramEnded(program_id=program))


async def test_blocks_are_pages_that_are_kept_and_freed_whole(roomy_engine: EngineServer, bus: Bus) -> None:
    async with playing(roomy_engine, bus, FCFS) as scene:
        kept = await first_turn(scene, "kept", seed=910)
        submitted = await scene.until(TurnSubmitted, program_id="kept")
        assert (submitted.prompt_tokens, submitted.projected_blocks) == (PROMPT_TOKENS, TURN_PAGES)
        freed = await first_turn(scene, "freed", seed=911)
        other = await first_turn(scene, "other", seed=912)
        retained = await scene.obeyed(Retain(program_id="kept", ttl_ns=seconds(600)), Discard(program_id="freed"))
        assert (await next_turn(scene, "freed", freed)).cached_tokens == 0
        reply = await next_turn(scene, "other", other)
        assert reply.cached_tokens >= KEPT_TOKENS, "only its own part goes"
        assert reply.cached_tokens % PAGE_TOKENS == 0
        ended = await scene.until(TurnEnded, 2, program_id="other")
        first = await scene.until(FirstToken, 2, program_id="other")
        assert first.cached_tokens == ended.cached_tokens == reply.cached_tokens
        sample = await scene.until(
            PoolSampled, where=lambda event: event.at_ns > retained.at_ns and event.retained_blocks
        )
        assert (sample.block_tokens, sample.total_blocks) == (PAGE_TOKENS, POOL_TOKENS // PAGE_TOKENS)
        assert TURN_PAGES - 1 <= sample.retained_blocks <= TURN_PAGES
        await fill(scene, seed=920, pool_tokens=POOL_TOKENS)
        assert (await next_turn(scene, "kept", kept)).cached_tokens >= KEPT_TOKENS
        assert (await next_turn(scene, "other", other)).cached_tokens == 0, "others filled the pool"
