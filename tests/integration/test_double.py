"""The engine double over HTTP and a real nats-server."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from support.governed_double import GateClient
from support.heard import Heard
from support.turn_contract import Answer, Messages, check_events, tell_story

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.core.model.events import (
    Event,
    ReplyRead,
    TurnEnded,
)
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate.tickets import Ticket
from controlplane.gate.usage import sizes_in, usage_of
from controlplane.lab.double import DoubleOptions, run_double
from controlplane.lab.double.script import Call, Reply
from controlplane.lab.experiment import Hardware

NODE = "test"
_TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy


class Scene(GateClient):
    """A running double and its HTTP client."""

    async def chat(self, program_id: str, messages: list[dict[str, Any]], **body: Any) -> tuple[int, Any]:
        content = {"messages": messages, "session_id": program_id, "max_tokens": 8, **body}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=content) as response:
            return response.status, await response.json()


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


class _Collects:
    """An emitter that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def start(self) -> None: ...

    def emit(self, event: Event, urgent: bool = False) -> None:
        self.events.append(event)

    def close(self, timeout_s: float = 0.0) -> None: ...


def _speaking_for(engine: Engine) -> tuple[Callable[[Any], None], list[Event]]:
    """A fleet that sees an engine's answers, and what it tells of them."""
    published = _Collects()
    pluginless = PluginlessEngines(Roster([engine]), lambda node, role: published)
    pluginless.lead()

    def answered(reply: Any) -> None:
        ticket = Ticket(turn_id=reply["id"], program_id=reply["id"], prompt=PromptSize(prompt_bytes=100))
        pluginless.began(ticket, engine, 1)
        pluginless.first_byte(ticket, engine, 200, 2)
        pluginless.ended(ticket, engine, 200, 4, usage_of(sizes_in(reply)))

    return answered, published.events


@contextlib.asynccontextmanager
async def _double(**options: Any) -> AsyncIterator[tuple[str, asyncio.Event]]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    settings = {"port": 0, "node": NODE, "time_scale": 20.0, "grace_s": 0.0, **options}
    running = asyncio.ensure_future(run_double(DoubleOptions(on_ready=ready.set_result, **settings), stop))
    await asyncio.wait((ready, running), return_when=asyncio.FIRST_COMPLETED, timeout=_TIMEOUT_S)
    try:
        if running.done():
            running.result()
        yield ready.result(), stop
    finally:
        stop.set()
        await asyncio.wait_for(running, _TIMEOUT_S)


@contextlib.asynccontextmanager
async def playing(**options: Any) -> AsyncIterator[Scene]:
    async with _double(**options) as (url, _), aiohttp.ClientSession() as http:
        yield Scene(url, http)


async def test_it_tells_what_an_engine_tells_and_caches_by_content(nats_server: Any) -> None:
    heard = await asyncio.to_thread(Heard, nats_server.url, NODE)
    try:
        async with playing(bus=nats_server.url) as scene:
            fleet, of_fleet = _speaking_for(Engine(place="n/engine", address="", has_plugin=False))

            async def ask(name: str, messages: Messages) -> Answer:
                status, reply = await scene.chat(name, messages)
                assert status == 200
                fleet(reply)
                usage = reply["usage"]
                return Answer(
                    text=reply["choices"][0]["message"]["content"],
                    prompt_tokens=usage["prompt_tokens"],
                    output_tokens=usage["completion_tokens"],
                    cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
                )

            answers = await tell_story(ask, lambda seed, count: " ".join(f"w{seed}x{n}" for n in range(count)))
            await asyncio.to_thread(
                heard.until, lambda: len(heard.of(TurnEnded)) == len(answers), "the turns' ends"
            )
            check_events(heard.events, answers)
            check_events(of_fleet, answers, counts_at_first=False)
    finally:
        await asyncio.to_thread(heard.close)


async def test_a_client_that_leaves_while_served_ends_its_turn() -> None:
    async with playing() as scene:

        async def runs(turns: int) -> None:
            async with asyncio.timeout(_TIMEOUT_S):
                while (await scene.health())["running_turns"] != turns:  # noqa: ASYNC110  as over HTTP
                    await asyncio.sleep(0.02)

        served = asyncio.ensure_future(scene.chat("p", user("one"), max_tokens=100_000))
        await runs(1)
        served.cancel()
        await runs(0)


async def test_streams_report_usage_with_the_tokens_that_were_cached() -> None:
    async def stream(scene: Scene, messages: list[dict[str, Any]], program_id: str = "p") -> tuple[str, Any]:
        body = {
            "messages": messages,
            "max_tokens": 400,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-litellm-session-id": program_id}
        text, usage, done = "", None, False
        async with scene.http.post(f"{scene.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["server"] == "penstock-engine-double"
            async for line in response.content:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    done = True
                elif data:
                    chunk = json.loads(data)
                    text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
                    usage = chunk.get("usage") or usage
        assert done
        return text, usage

    async with playing(tokens_per_word=10) as scene:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "be " * 64}, *user("do " * 64)]
        first, usage = await stream(scene, messages)
        assert len(first.split()) == 40
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        messages += [{"role": "assistant", "content": first}, *user("and then")]
        _, usage = await stream(scene, messages)
        assert usage["prompt_tokens"] == 10 * (64 + 64 + 40 + 2)
        assert 10 * (64 + 64 + 40) - 32 <= usage["prompt_tokens_details"]["cached_tokens"] <= 10 * (64 + 64 + 40)
        _, usage = await stream(scene, [messages[0], *user("else")], program_id="other")
        assert usage["prompt_tokens_details"]["cached_tokens"] == 640, "the system prompt is shared"


async def test_a_scripted_model_calls_tools_which_the_gate_reads(nats_server: Any) -> None:
    looks, ends = Reply(tokens=64, calls=(Call("bash", {"command": "ls"}),)), Reply(tokens=16)

    heard = await asyncio.to_thread(Heard, nats_server.url, NODE)
    try:
        async with playing(bus=nats_server.url, script={"the task": (looks, ends)}) as scene:
            turns, answers = user("please do the task"), []
            for _ in range(2):
                status, reply = await scene.chat("p", turns)
                assert status == 200
                answers.append(reply["choices"][0])
                turns = [*turns, answers[-1]["message"], {"role": "tool", "content": "a file"}]
            assert [each["finish_reason"] for each in answers] == ["tool_calls", "stop"]
            (call,) = answers[0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"command": "ls"}
            await asyncio.to_thread(heard.until, lambda: len(heard.of(TurnEnded)) == 2, "the turns' ends")
            read, ended = heard.of(ReplyRead)[0], heard.of(TurnEnded)[1]
            assert [(each.call_id, each.tool) for each in read.calls] == [(call["id"], "ls")]
            assert ended.output_tokens == 16
            assert ended.cached_tokens >= 64, "the first reply, with its call, is a part of the context"
    finally:
        await asyncio.to_thread(heard.close)


WRONG = [
    (b"{", "not a JSON object"),
    (b"[]", "not a JSON object"),
    ({"model": "m"}, "Field required"),
    ({"messages": []}, "cannot be empty"),
    ({"messages": ["hello"]}, "messages[0]: expected an object"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": user("x"), "max_tokens": 0}, "max_tokens must be at least 1"),
    ({"messages": user("x"), "max_tokens": "many"}, "max_tokens: expected an integer"),
    ({"messages": user("x"), "stream_options": 1}, "stream_options"),
    ({"messages": user("x"), "n": 2}, "one choice"),
    ({"messages": user("word " * 500)}, "512"),
]


async def test_models_health_unknown_paths_and_wrong_requests_as_sglang_answers() -> None:
    async with playing(hardware=Hardware(max_context_tokens=512)) as scene:
        async with scene.http.get(f"{scene.url}/v1/models") as response:
            model = (await response.json())["data"][0]
        assert (model["id"], model["max_model_len"]) == ("penstock-engine-double", 512)
        for path, status in (("/health", 200), ("/penstock/double", 200), ("/v1/embeddings", 404)):
            async with scene.http.get(f"{scene.url}{path}") as response:
                assert response.status == status
        assert (await scene.chat("p", user("x"), model="anything"))[0] == 200
        assert (await scene.health())["mode"] == "passive"
        for body, message in WRONG:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with scene.http.post(f"{scene.url}/v1/chat/completions", data=data) as response:
                problem = await response.json()
                assert (response.status, problem["object"]) == (400, "error")
            assert (problem["type"], problem["code"]) == ("BadRequestError", 400)
            assert message in problem["message"]


async def test_a_port_in_use_is_a_clear_error() -> None:
    async with _double() as (url, _):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(ControlPlaneError, match=f"127.0.0.1:{port}.*in use.*--port"):
            await run_double(DoubleOptions(port=port))
    with pytest.raises(ConfigError, match="host"):
        await run_double(DoubleOptions(host="no-such-host.invalid", port=0))


def test_sigterm_ends_open_streams_and_the_process() -> None:
    code = (
        "from controlplane.lab.double import DoubleOptions, serve\n"
        "serve(DoubleOptions(port=0, grace_s=0.1, on_ready=lambda url: print(url, flush=True)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"messages": user("x"), "max_tokens": 100_000, "stream": True})
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall((head + body).encode())
            received = b""
            while b'"content": "' not in received.replace(b'"content": ""', b""):
                received += client.recv(65_536)
            process.send_signal(signal.SIGTERM)
            while data := client.recv(65_536):
                received += data
        assert b'data: {"error": ' in received
        assert b"data: [DONE]" in received
        _, errors = process.communicate(timeout=_TIMEOUT_S)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()
