"""Admission at the running engine: a daemon with a window of one program, and every way in."""

import asyncio
from typing import Any

import pytest
from engine_scene import FCFS, WINDOW_OF_ONE, Bus, Scene, playing
from engine_server import EngineServer
from engine_versions import KIND, on_every_version
from tiny_model import words

from controlplane.core.model.events import (
    FirstToken,
    ProgramEnded,
    TurnAbandoned,
    TurnEnded,
    TurnQueued,
    TurnSubmitted,
)

SAY_IT = words(430, 50)
CHAT = {"messages": [{"role": "user", "content": SAY_IT}], "max_tokens": 8}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": SAY_IT, "max_tokens": 8},
    "/v1/responses": {"input": SAY_IT, "max_output_tokens": 8},
    "/v1/messages": CHAT,
}
MORE_ROUTES: dict[str, dict[str, dict[str, Any]]] = {
    "sglang": {
        "/generate": {"text": SAY_IT, "sampling_params": {"max_new_tokens": 8}},
        "/invocations": CHAT,
        "/vertex_generate": {
            "instances": [{"text": SAY_IT}],
            "parameters": {"sampling_params": {"max_new_tokens": 8}},
        },
        "/api/generate": {"prompt": SAY_IT, "options": {"num_predict": 8}},
    }
}


async def held(scene: Scene, program_id: str, seed: int, **more: Any) -> "asyncio.Task[Any]":
    """A turn that the gate holds, since another program has the only slot."""
    asking = asyncio.ensure_future(scene.chat(program_id, words(seed, 60), **more))
    await scene.until(TurnQueued, program_id=program_id)
    assert (await scene.penstock())["held_turns"] == 1
    return asking


def output_tokens(body: Any) -> int | None:
    """What a reply tells of its own, in any of these APIs; None where it does not."""
    usage = body.get("usage") or {} if isinstance(body, dict) else {}
    found: int | None = usage.get("completion_tokens", usage.get("output_tokens"))
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_no_way_in_goes_past_the_gate(plugin_engine: EngineServer, bus: Bus, stream: bool) -> None:
    """Each names its program, and has one turn from the gate to its end."""
    async with playing(plugin_engine, bus, FCFS + "[admission]\nwindow = 64\n") as scene:
        (model,) = (await scene.json("/v1/models"))["data"]
        for path, asked in (ROUTES | MORE_ROUTES.get(KIND.name, {})).items():
            name = f"by{path.replace('/', '-')}-{stream}"
            reply = await scene.post(path, {"model": model["id"], "stream": stream, **asked}, name)
            assert reply.status == 200, path
            queued = await scene.until(TurnQueued, program_id=name)
            assert queued.prompt_bytes >= len(SAY_IT)
            ended = await scene.until(TurnEnded, program_id=name, turn_id=queued.turn_id)
            assert (ended.ok, ended.prompt_tokens >= 50) == (True, True), path
            assert output_tokens(reply.body) in (None, ended.output_tokens), path


@on_every_version
async def test_a_program_waits_until_the_one_before_has_ended(plugin_engine: EngineServer, bus: Bus) -> None:
    """Held, then served: a whole reply, and a streamed one."""

    async def waits(scene: Scene, stream: bool) -> None:
        first, second = f"first-{stream}", f"second-{stream}"
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
        await scene.publish(ProgramEnded(program_id=second))

    async with playing(plugin_engine, bus, WINDOW_OF_ONE) as scene:
        await waits(scene, stream=False)
        await waits(scene, stream=True)


async def test_a_client_that_leaves_while_held_never_runs(plugin_engine: EngineServer, bus: Bus) -> None:
    async with playing(plugin_engine, bus, WINDOW_OF_ONE) as scene:
        running = asyncio.ensure_future(scene.chat("stays", words(410, 60), output_tokens=800))
        await scene.until(FirstToken, program_id="stays")
        waiting = await held(scene, "goes", 411)
        waiting.cancel()
        abandoned = await scene.until(TurnAbandoned, program_id="goes")
        assert abandoned.turn_id == scene.heard(TurnQueued, program_id="goes")[0].turn_id
        assert (await scene.penstock())["held_turns"] == 0
        assert (await running).status == 200
        await scene.publish(ProgramEnded(program_id="stays"))
        assert (await scene.chat("comes", words(412, 60))).status == 200
        await scene.until(TurnEnded, program_id="comes")
        assert scene.heard(TurnSubmitted, program_id="goes") == []
