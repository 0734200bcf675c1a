"""An OpenAI-compatible endpoint as far as the load generator sees one; it answers what a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class EndpointDouble:
    """Streams ``max_tokens`` words; ``script`` answers take the first requests, one each, before that."""

    script: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    hold_ms: str = ""
    names_turns: bool = False  # as a gate before it would
    url: str = ""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None  # where given, replies wait for it

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.asked.set()
        if self.script:
            return await self.script.pop(0)(request, body)
        if self.gate is not None:
            await self.gate.wait()
        return await self.stream(request, body)

    async def stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream"}
        if self.hold_ms:
            headers["x-penstock-hold-ms"] = self.hold_ms
        if self.names_turns:
            headers["x-penstock-turn-id"] = f"turn-{len(self.requests)}"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for index in range(body["max_tokens"]):
            await response.write(data_line({"choices": [{"index": 0, "delta": {"content": f"w{index} "}}]}))
        await response.write(data_line({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
        words = sum(len(message["content"].split()) for message in body["messages"])
        usage = {
            "prompt_tokens": words,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": words // 2},
        }
        await response.write(data_line({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "endpoint-double"}]})


def data_line(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@asynccontextmanager
async def serving(endpoint: EndpointDouble) -> AsyncIterator[EndpointDouble]:
    """Serve it on a free port of this machine."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield endpoint
    finally:
        await runner.cleanup()
