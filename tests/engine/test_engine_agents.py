"""Agents on the real engine: OpenHands, its tools and its turns on one stream; and a client that names nobody."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_scene import NODE, Bus, Scene, opened, play
from engine_server import EngineServer, serving
from support.agent_runs import python_of, run_agent
from support.scripted_model import Reply, ScriptedModel
from tiny_model import words

from controlplane.core.events import (
    HostSampled,
    ProgramArrived,
    ProgramEnded,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnSubmitted,
)

POOL_TOKENS = 16_000  # for an agent's system prompt
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
def roomy_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``roomy_engine`` looks for its bus."""
    return tmp_path_factory.mktemp("roomy-state")


@pytest.fixture(scope="module")
def roomy_engine(
    engine_env: Path, tiny_model: Path, roomy_state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    variables = {
        "PENSTOCK_NODE": NODE,
        "PENSTOCK_STATE_DIR": str(roomy_state_dir),
        "PENSTOCK_PREFIX_IDENTITY": "1",
    }
    server = EngineServer(
        tmp_path_factory.mktemp("roomy"),
        environment=engine_env,
        model=tiny_model,
        pool_tokens=POOL_TOKENS,
        plugins=("penstock",),
        variables=variables,
    )
    yield from serving(server)


@pytest.fixture
def roomy_bus(nats_server: Any, roomy_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, roomy_state_dir, tmp_path))


def test_turns_and_tools_of_an_agent_and_its_sub_agent(
    roomy_engine: EngineServer, roomy_bus: Bus, tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    told = {"workspace": str(tmp_path / "workspace"), "message": "please begin"}

    async def story(scene: Scene) -> None:
        await scene.until(HostSampled)
        with ScriptedModel(SCRIPTS, upstream=scene.url) as model:
            said = await asyncio.to_thread(
                run_agent,
                python_of("openhands"),
                "openhands_run.py",
                told | {"url": model.url},
                roomy_bus.server.url,
                PENSTOCK_NODE=NODE,
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

    roomy_bus.daemon(MARS)
    play(story, roomy_engine, roomy_bus)


def test_a_client_that_names_nobody_is_known_by_how_its_prompt_goes_on(
    roomy_engine: EngineServer, roomy_bus: Bus
) -> None:
    def said(role: str, seed: int, count: int = 300) -> dict[str, str]:
        return {"role": role, "content": words(seed, count)}

    async def story(scene: Scene) -> None:
        first, other = [said("user", 1)], [said("user", 2)]
        for messages in (first, other, [*first, said("assistant", 3, 20), said("user", 4)], [said("user", 5)]):
            assert (await scene.chat("", messages)).status == 200
        await scene.until(TurnEnded, 4, where=lambda event: event.program_id.startswith("continued-"))
        ended = [event for event in scene.heard(TurnEnded) if event.program_id.startswith("continued-")]
        one, two, again, three = (event.program_id for event in ended)
        assert again == one
        assert len({one, two, three}) == 3
        assert ended[2].cached_tokens >= 300, "its context is found, as that of a program that is known"
        for program in (one, two, three):
            await scene.publish(ProgramEnded(program_id=program))

    roomy_bus.daemon(MARS)
    play(story, roomy_engine, roomy_bus)


def goes_on(scene: Scene, program: str, turns: int) -> None:
    """Turn, tool, turn: one after the other, on one machine's clock; and later turns find their context."""
    submitted, ended = scene.heard(TurnSubmitted, program_id=program), scene.heard(TurnEnded, program_id=program)
    began, done = scene.heard(ToolStarted, program_id=program), scene.heard(ToolEnded, program_id=program)
    assert len(submitted) == len(ended) == len(began) == len(done) == turns
    for one, start, end, following in zip(ended, began, done, submitted[1:], strict=False):
        assert one.at_ns - SLACK_NS < start.at_ns < end.at_ns < following.at_ns + SLACK_NS
    for before, after in itertools.pairwise(ended):
        assert after.cached_tokens >= 0.9 * before.prompt_tokens > 100
