"""Clients whose streams the gate holds: the SDKs of OpenAI and Anthropic, and a proxy that ends silent requests."""

import asyncio
import contextlib
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from support.agent_runs import run_agent
from support.ports import free_port, is_listening
from support.programs import found, needs

from controlplane.core.model.commands import Admit, Refuse
from controlplane.core.model.types import seconds
from controlplane.gate import Gate, GateLimits, GateMiddleware
from controlplane.gate.asgi import send_json
from controlplane.wire.heartbeat import Heartbeat

NGINX_WAITS_S = 2  # 60 by default
CONFIG = f"""
daemon off; master_process off; error_log stderr; pid nginx.pid;
events {{}}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{
    listen 127.0.0.1:LISTEN;
    location / {{ proxy_pass http://127.0.0.1:ENGINE; proxy_read_timeout {NGINX_WAITS_S}s; }}
  }}
}}
"""
CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
RESPONSE = {"id": "1", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "completed"}
MESSAGE = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHUNK | {"choices": [{"index": 0, "delta": {"content": "well"}, "finish_reason": "stop"}]}
    ],
    "/v1/completions": [
        CHUNK | {"choices": [{"index": 0, "text": "well", "finish_reason": "stop", "logprobs": None}]}
    ],
    "/v1/responses": [
        {
            "type": "response.output_text.delta",
            "delta": "well",
            "item_id": "1",
            "output_index": 0,
            "content_index": 0,
        },
        {"type": "response.completed", "response": RESPONSE},
    ],
    "/v1/messages": [
        {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "well"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ],
}
ERROR = {"error": {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}}


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """Streams a word to the model ``good``; knows no other."""
    asked = json.loads((await receive())["body"])
    if asked["model"] != "good":
        await send_json(send, 404, ERROR)
        return
    events = [(event.get("type", ""), json.dumps(event)) for event in STREAMS[scope["path"]]]
    data = "".join(f"event: {kind}\ndata: {text}\n\n" if kind else f"data: {text}\n\n" for kind, text in events)
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    await send(start)
    await send({"type": "http.response.body", "body": data.encode(), "more_body": False})


class GatedServer:
    """An engine behind the gate in a real server. Its daemon decides once a client was told that it waits."""

    def __init__(self, decide: Callable[["GatedServer", str], None]) -> None:
        limits = GateLimits(early_headers_ns=seconds(0.05))
        self._loop = asyncio.new_event_loop()
        now_ns = lambda: round(self._loop.time() * 1e9)  # noqa: E731
        self._gate = Gate(send=lambda event, urgent: None, now_ns=now_ns, limits=limits)
        self._gate.on_heartbeat(Heartbeat(node="n", boot_id="b", lease_ttl_ns=seconds(600), limit=1, window=1.0))
        self._gated = GateMiddleware(engine, self._gate)
        self._gated._comment_s = NGINX_WAITS_S / 20
        self._decide = decide
        self._told: set[str] = set()
        self.port = free_port()
        config = uvicorn.Config(
            self._app,
            port=self.port,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._server = uvicorn.Server(config)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        program = dict(scope["headers"]).get(b"x-penstock-program-id", b"").decode()

        async def heard(message: Any) -> None:
            await send(message)
            if message.get("body", b"").startswith(b": waiting") and program not in self._told:
                self._told.add(program)
                self._decide(self, program)

        await self._gated(scope, receive, heard)

    def obey(self, command: Admit | Refuse) -> None:
        self._loop.call_soon_threadsafe(self._gate.on_command, command)

    @contextlib.contextmanager
    def serving(self) -> Iterator["GatedServer"]:
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._server.serve(),))
        thread.start()
        try:
            until_listening(self.port, thread.is_alive)
            yield self
        finally:
            self._server.should_exit = True
            thread.join(60)
            self._loop.close()


def until_listening(port: int, is_alive: Callable[[], bool]) -> None:
    while not is_listening(port):
        assert is_alive()
        time.sleep(0.02)


def at_once(server: GatedServer, program: str) -> None:
    refused = Refuse(program_id=program, reason="a budget is spent")
    server.obey(refused if program.endswith("refused") else Admit(program_id=program))


def test_each_sdk_reads_past_the_comments_and_raises_for_what_goes_wrong(agent_python: str) -> None:
    programs = [
        f"{sdk}-{model}"
        for sdk in ("chat", "completions", "responses", "messages")
        for model in ("good", "absent", "refused")
    ]
    with GatedServer(at_once).serving() as server:
        given = run_agent(
            agent_python, "waiting_clients.py", {"url": f"http://127.0.0.1:{server.port}", "programs": programs}, ""
        )
    for program in programs:
        sdk, _, model = program.partition("-")
        answer = given[program]
        if model == "good":
            assert answer == "well", program
            continue
        assert answer["error"] == ("APIStatusError" if sdk == "messages" else "APIError")
        told = {"absent": ("no such model", 404, 404), "refused": ("a budget is spent", "budget_spent", 429)}[model]
        assert (answer["message"], answer["code"], answer["status"]) == told


@contextlib.contextmanager
def nginx(folder: Path, engine_port: int) -> Iterator[str]:
    port = free_port()
    (folder / "nginx.conf").write_text(CONFIG.replace("LISTEN", str(port)).replace("ENGINE", str(engine_port)))
    command = [found("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    with (folder / "nginx.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        until_listening(port, lambda: process.poll() is None)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@needs("nginx")
def test_a_stream_outlives_the_patience_of_a_proxy_that_ends_a_silent_request(
    agent_python: str, tmp_path: Path
) -> None:
    """The stream waits until another request, which came later and does not stream, was given up by nginx."""
    statuses: list[int] = []

    def ask_in_silence(server: GatedServer, program: str) -> None:
        body = json.dumps({"model": "good", "messages": [], "program_id": "silent"}).encode()
        try:
            with urllib.request.urlopen(f"{urls[0]}/v1/chat/completions", body, timeout=60) as answer:
                statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
        server.obey(Admit(program_id=program))

    def decide(server: GatedServer, program: str) -> None:
        threading.Thread(target=ask_in_silence, args=(server, program)).start()

    urls: list[str] = []
    with GatedServer(decide).serving() as server, nginx(tmp_path, server.port) as url:
        urls.append(url)
        given = run_agent(agent_python, "waiting_clients.py", {"url": url, "programs": ["chat-good"]}, "")
    assert given["chat-good"] == "well", (tmp_path / "nginx.log").read_text()
    assert statuses == [504]
