"""Admission at the running engine: a daemon with a window of one program."""

import asyncio
from typing import Any

import pytest
from engine_scene import Bus, Scene, play
from engine_server import EngineServer
from engine_versions import every_engine, on_every_version
from tiny_model import words

from controlplane.core.events import (
    FirstToken,
    ProgramEnded,
    TurnAbandoned,
    TurnEnded,
    TurnQueued,
    TurnSubmitted,
)

WINDOW_OF_ONE = 'preset = "fcfs"\n[admission]\nwindow = 1\n'


async def held(scene: Scene, program_id: str, seed: int, **more: Any) -> "asyncio.Task[Any]":
    """A turn that the gate holds, since another program has the only slot."""
    asking = asyncio.ensure_future(scene.chat(program_id, words(seed, 60), **more))
    await scene.until(TurnQueued, program_id=program_id)
    assert (await scene.penstock())["held_turns"] == 1
    return asking


OTHER_APIS: dict[str, dict[str, Any]] = {
    "/invocations": {"model": "tiny", "messages": [{"role": "user", "content": "say it"}], "max_tokens": 4},
    "/vertex_generate": {
        "instances": [{"text": "say it"}],
        "parameters": {"sampling_params": {"max_new_tokens": 4}},
    },
    "/api/generate": {"model": "tiny", "prompt": "say it", "stream": False, "options": {"num_predict": 4}},
}


@pytest.mark.parametrize("path", sorted(OTHER_APIS))
def test_no_api_of_the_server_goes_past_the_gate(plugin_engine: EngineServer, bus: Bus, path: str) -> None:
    name = f"by{path.replace('/', '-')}"

    async def story(scene: Scene) -> None:
        reply = await scene.post(path, OTHER_APIS[path], name)
        assert reply.status == 200
        submitted = await scene.until(TurnSubmitted, program_id=name)
        assert submitted.turn_id == reply.headers["x-penstock-turn-id"]

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
@pytest.mark.parametrize("stream", [False, True])
def test_a_program_waits_until_the_one_before_has_ended(
    plugin_engine: EngineServer, bus: Bus, stream: bool
) -> None:
    first, second = f"first-{stream}", f"second-{stream}"

    async def story(scene: Scene) -> None:
        running = asyncio.ensure_future(
            scene.chat(first, words(400 + stream, 60), output_tokens=400, stream=stream)
        )
        await scene.until(FirstToken, program_id=first)
        waiting = await held(scene, second, 402 + stream, stream=stream)
        assert (await running).status == 200
        ended = await scene.until(TurnEnded, program_id=first)
        again = await scene.chat(first, words(404 + stream, 60), stream=stream)
        assert (again.status, again.held_ms) == (200, 0), "the program still has its slot"
        assert not waiting.done()
        assert scene.heard(TurnSubmitted, program_id=second) == []
        await scene.publish(ProgramEnded(program_id=first))
        reply = await waiting
        assert (reply.status, reply.output_tokens) == (200, 8)
        assert reply.chunks > 1 if stream else reply.chunks == 1
        submitted = await scene.until(TurnSubmitted, program_id=second)
        assert submitted.at_ns > ended.at_ns
        assert reply.held_ms > 0
        queued = scene.heard(TurnQueued, program_id=second)[0]
        assert queued.turn_id == submitted.turn_id == reply.headers["x-penstock-turn-id"]

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_a_client_that_leaves_while_held_never_runs(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.chat("stays", words(410, 60), output_tokens=800))
        await scene.until(FirstToken, program_id="stays")
        waiting = await held(scene, "goes", 411)
        waiting.cancel()
        abandoned = await scene.until(TurnAbandoned, program_id="goes")
        assert abandoned.turn_id == scene.heard(TurnQueued, program_id="goes")[0].turn_id
        assert (await scene.penstock())["held_turns"] == 0
        assert (await running).status == 200
        await scene.publish(ProgramEnded(program_id="stays"))
        other = await scene.chat("comes", words(412, 60))
        assert other.status == 200
        await scene.until(TurnEnded, program_id="comes")
        assert scene.heard(TurnSubmitted, program_id="goes") == []

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


@every_engine
def test_parallel_turns_of_one_program_share_its_slot(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        await scene.chat("parallel", words(420, 60))
        replies = await asyncio.gather(
            *(scene.chat("parallel", words(421 + n, 60), output_tokens=100) for n in range(4))
        )
        assert [reply.status for reply in replies] == [200] * 4
        assert [reply.held_ms for reply in replies] == [0] * 4
        await scene.until(TurnEnded, 5, program_id="parallel")

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)
