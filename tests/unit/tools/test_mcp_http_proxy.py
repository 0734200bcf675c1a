"""The proxy between an MCP client and a double of its server, over real sockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer
from support.reports import Reports

from controlplane.core.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools import mcp_http_proxy
from engine_hooks.tools.mcp_http_proxy import Proxy

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Client = TestClient[web.Request, web.Application]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    reports = Reports()
    monkeypatch.setattr(mcp_http_proxy, "reporter", lambda: reports)
    yield reports


async def talk(handler: Handler, story: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run ``story`` with a client of a proxy before a server that answers with ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        proxy = TestServer(Proxy(str(server.make_url("/mcp")), **options).app())
        async with TestClient(proxy) as client:
            await story(client)


def ends(reports: Reports) -> list[bool]:
    return [event.ok for event in reports.events if isinstance(event, ToolEnded)]


@pytest.mark.asyncio
async def test_what_is_asked_and_answered_passes_as_it_is(reports: Reports) -> None:
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, str(request.rel_url), request.headers.get("x-own"), await request.read()))
        return web.Response(body=b'{"jsonrpc":  "2.0", "id": 1, "result": {}}', headers={"x-back": "told"})

    async def story(client: Client) -> None:
        told = json.dumps(CALL).encode()
        async with client.post("/mcp?a=b", data=told, headers={"x-own": "mine"}) as answer:
            assert (answer.status, answer.headers["x-back"]) == (200, "told")
            assert await answer.read() == b'{"jsonrpc":  "2.0", "id": 1, "result": {}}'
        await (await client.get("/.well-known/oauth-protected-resource?c=d")).read()
        other = ("GET", "/.well-known/oauth-protected-resource?c=d", None, b"")
        assert seen == [("POST", "/mcp?a=b", "mine", told), other]

    await talk(handler, story, program="run-1")
    (started,) = (event for event in reports.events if isinstance(event, ToolStarted))
    assert (started.program_id, started.tool, ends(reports)) == ("run-1", "look", [True])


@pytest.mark.asyncio
async def test_a_stream_of_events_passes_as_it_comes(reports: Reports) -> None:
    more = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"method": "notifications/progress"}\r\n\r\nda')
        await more.wait()
        await response.write(b"ta: " + json.dumps(ANSWER).encode() + b"\n\n")
        return response

    async def story(client: Client) -> None:
        async with client.post("/mcp", json=CALL) as answer:
            first = await answer.content.readuntil(b"\r\n\r\n")
            assert b"progress" in first
            assert ends(reports) == []
            more.set()
            assert (await answer.read()).endswith(json.dumps(ANSWER).encode() + b"\n\n")
        assert ends(reports) == [True]

    await talk(handler, story)


@pytest.mark.asyncio
async def test_sessions_are_programs_of_their_own_and_end_when_they_are_deleted(reports: Reports) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return web.Response()
        told = await request.json()
        session = {"Mcp-Session-Id": told["params"]["session"]} if told["method"] == "initialize" else {}
        return web.json_response(ANSWER, headers=session)

    async def story(client: Client) -> None:
        for name in ("one", "two"):
            begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"session": name}}
            await (await client.post("/mcp", json=begin)).read()
        for name in ("one", "two", "one"):
            await (await client.post("/mcp", json=CALL, headers={"mcp-session-id": name})).read()
        arrived = [event.program_id for event in reports.events if isinstance(event, ProgramArrived)]
        started = [event.program_id for event in reports.events if isinstance(event, ToolStarted)]
        assert started == [arrived[0], arrived[1], arrived[0]]
        await (await client.delete("/mcp", headers={"mcp-session-id": "two"})).read()
        assert [e.program_id for e in reports.events if isinstance(e, ProgramEnded)] == [arrived[1]]

    await talk(handler, story)
    assert len([event for event in reports.events if isinstance(event, ProgramEnded)]) == 2, "and with the proxy"


@pytest.mark.asyncio
@pytest.mark.parametrize("late", ["before it answers", "in its stream"])
async def test_a_call_that_takes_too_long_is_answered_and_the_server_told(reports: Reports, late: str) -> None:
    cancelled = []

    async def handler(request: web.Request) -> web.StreamResponse:
        told = await request.json()
        if told["method"] == "notifications/cancelled":
            cancelled.append(told["params"]["requestId"])
            return web.Response(status=202)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if late == "in its stream":
            await response.prepare(request)
        await asyncio.sleep(30)
        return response

    async def story(client: Client) -> None:
        async with client.post("/mcp", json=CALL) as answer:
            text = await answer.text()
        assert "look took longer than 0.2 s" in text
        assert text.startswith("event: message\ndata: {") is (late == "in its stream")
        assert cancelled == [1]

    await talk(handler, story, timeout_s=0.2)
    assert ends(reports) == [False]


@pytest.mark.asyncio
async def test_a_server_that_refuses_or_is_gone_is_told_and_the_call_is_over(reports: Reports) -> None:
    async def refuses(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text="who are you?")

    async def story(client: Client) -> None:
        async with client.post("/mcp", json=CALL) as answer:
            assert (answer.status, await answer.text()) == (401, "who are you?")

    await talk(refuses, story)
    async with TestClient(TestServer(Proxy("http://127.0.0.1:9/mcp").app())) as client:
        answer = await client.post("/mcp", json=CALL)
        assert answer.status == 502
        assert "the MCP server at http://127.0.0.1:9/mcp does not answer" in (await answer.json())["error"]
    assert ends(reports) == [False, False]


@pytest.mark.asyncio
async def test_a_stream_that_breaks_off_breaks_off(reports: Reports) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def story(client: Client) -> None:
        async with client.post("/mcp", json=CALL) as answer:
            with pytest.raises(ClientPayloadError):
                await answer.read()

    await talk(handler, story)
    assert ends(reports) == [False]


@pytest.mark.parametrize("url", ["ftp://x/mcp", "localhost:8000/mcp"])
def test_an_address_that_is_none_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mcp_http_proxy", url])
    with pytest.raises(SystemExit):
        mcp_http_proxy.main()
    assert "is no http:// or https:// address" in capsys.readouterr().err
