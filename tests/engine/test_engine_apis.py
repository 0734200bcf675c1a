"""The other ways in: Anthropic's messages and OpenAI's responses are held, labelled and followed as chats are."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from engine_scene import Bus, Scene, play
from engine_server import EngineServer
from tiny_model import words

from controlplane.core.events import FirstToken, ProgramEnded, TurnEnded, TurnQueued, TurnSubmitted

WINDOW_OF_ONE = 'preset = "fcfs"\n[admission]\nwindow = 1\n'
PROMPT_TOKENS = 60
OUTPUT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: the whole reply, or the events of a streamed one."""

    status: int
    held_ms: int
    told: list[Any]


def messages_body(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": OUTPUT_TOKENS}


def responses_body(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"input": [{"role": "user", "content": content}], "max_output_tokens": OUTPUT_TOKENS}


WAYS = {"/v1/messages": messages_body, "/v1/responses": responses_body}


async def ask(scene: Scene, path: str, seed: int, stream: bool, program_id: str = "") -> Answer:
    """One turn of the program, named as its clients do: in a header, or within the user of Anthropic's metadata."""
    (model,) = (await scene.json("/v1/models"))["data"]
    body = {"model": model["id"], "stream": stream, "temperature": 0, **WAYS[path](words(seed, PROMPT_TOKENS))}
    headers = {}
    if path == "/v1/messages":
        body["metadata"] = {"user_id": f"user_a_account_b_session_{program_id}"}
    else:
        headers["session_id"] = program_id
    scene.programs.add(program_id)
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{scene.url}{path}", json=body, headers=headers) as response,
    ):
        lines = (await response.text()).splitlines()
        told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]
        held_ms = int(response.headers.get("x-penstock-hold-ms", -1))
        return Answer(status=response.status, held_ms=held_ms, told=told)


def usage(answer: Answer, path: str, stream: bool) -> tuple[int, int]:
    """(prompt tokens, output tokens), as the engine tells in that API."""
    if path == "/v1/responses":
        whole = answer.told[-1]["response"] if stream else answer.told[0]
        return whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]
    if not stream:
        return answer.told[0]["usage"]["input_tokens"], answer.told[0]["usage"]["output_tokens"]
    (start,) = (one["message"] for one in answer.told if one["type"] == "message_start")
    (delta,) = (one for one in answer.told if one["type"] == "message_delta")
    return start["usage"]["input_tokens"], delta["usage"]["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(WAYS))
def test_a_turn_is_held_then_served_and_followed(
    plugin_engine: EngineServer, bus: Bus, path: str, stream: bool
) -> None:
    first, second = f"first{path}-{stream}", f"second{path}-{stream}"
    seed = 1200 + 100 * list(WAYS).index(path) + 10 * stream

    async def story(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.chat(first, words(seed, PROMPT_TOKENS), output_tokens=400))
        await scene.until(FirstToken, program_id=first)
        waiting = asyncio.ensure_future(ask(scene, path, seed + 1, stream, second))
        queued = await scene.until(TurnQueued, program_id=second)
        assert queued.prompt_bytes >= len(words(seed + 1, PROMPT_TOKENS))
        assert (await running).status == 200
        assert not waiting.done(), "the first program has the only slot"
        await scene.publish(ProgramEnded(program_id=first))
        answer = await waiting
        assert answer.status == 200
        assert answer.held_ms > 0
        assert len(answer.told) > 2 if stream else len(answer.told) == 1
        ended = await scene.until(TurnEnded, program_id=second)
        assert (ended.turn_id, ended.ok) == (queued.turn_id, True)
        assert (ended.prompt_tokens, ended.output_tokens) == usage(answer, path, stream)
        assert ended.prompt_tokens >= PROMPT_TOKENS
        (submitted,) = scene.heard(TurnSubmitted, program_id=second)
        assert submitted.turn_id == queued.turn_id

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


def test_a_client_of_messages_that_leaves_while_held_never_runs(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.chat("stays-in", words(1290, 60), output_tokens=400))
        await scene.until(FirstToken, program_id="stays-in")
        waiting = asyncio.ensure_future(ask(scene, "/v1/messages", 1291, True, "leaves-messages"))
        await scene.until(TurnQueued, program_id="leaves-messages")
        waiting.cancel()
        assert (await running).status == 200
        await scene.publish(ProgramEnded(program_id="stays-in"))
        assert (await scene.chat("comes-next", words(1292, 60))).status == 200
        await scene.until(TurnEnded, program_id="comes-next")
        assert scene.heard(TurnSubmitted, program_id="leaves-messages") == []

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


def test_a_refusal_is_told_in_anthropics_shape(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        body = {**messages_body("w3"), "program_id": "x" * 300}
        reply = await scene.post("/v1/messages", body)
        assert reply.status == 400
        assert (reply.body["type"], reply.body["error"]["type"]) == ("error", "invalid_request_error")
        assert reply.body["error"]["code"] == "bad_identity"

    bus.daemon()
    play(story, plugin_engine, bus)
