"""The proxy between an MCP client and a double of its server, over real sockets."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from support.reports import Reports

from controlplane.core.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools import mcp_http_exchange, mcp_http_proxy, mcp_messages
from engine_hooks.tools.mcp_http_proxy import Proxy

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Client = TestClient[web.Request, web.Application]
EVENTS = {"content-type": "text/event-stream"}
LARGE = "A" * (3 << 20)
PATIENCE_S = 60


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    reports = Reports()
    monkeypatch.setattr(mcp_http_proxy, "reporter", lambda: reports)
    yield reports


async def talk(handler: Handler, story: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run ``story`` with a client of a proxy before a server that answers with ``handler``."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        proxy = TestServer(Proxy(str(server.make_url("/mcp")), **options).app())
        async with TestClient(proxy) as client, asyncio.timeout(PATIENCE_S):
            await story(client)


def call(number: Any = 1, name: str = "look", **arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


def result(told: Any, value: Any = "own") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": told["id"], "result": {"value": value}}


def event(message: Any) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def read(text: bytes) -> list[Any]:
    """The messages in an answer of any form."""
    if text[:1] in (b"{", b"["):
        found = json.loads(text)
        return found if isinstance(found, list) else [found]
    return [json.loads(data) for one in text.split(b"\n\n") if (data := mcp_messages.event_data(one))]


def outcome(messages: list[Any]) -> list[Any]:
    """Of each answer its id and its value or the error's text."""
    return [
        (one["id"], one["result"]["value"] if "result" in one else one["error"]["message"])
        for one in messages
        if "method" not in one
    ]


def ends(reports: Reports) -> list[bool]:
    return [event.ok for event in reports.events if isinstance(event, ToolEnded)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


# What servers do with a request


async def stream(
    request: web.Request, *parts: bytes, broken: bool = False, hangs: bool = False
) -> web.StreamResponse:
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    if hangs:
        await asyncio.Event().wait()
    if broken:
        cut(request)
    return response


def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half_a_text(request: web.Request, told: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "999"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc"')
    return cut(request)


async def hang(request: web.Request, told: Any) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def done(make: Callable[[web.Request, Any], web.StreamResponse]) -> Any:
    async def answer(request: web.Request, told: Any) -> web.StreamResponse:
        return make(request, told)

    return answer


def packed(text: bytes) -> web.Response:
    return web.Response(
        body=gzip.compress(text), headers={"content-encoding": "gzip"}, content_type="application/json"
    )


NONE = "ended its answer without one"
GONE = "does not answer"
LATE = "look took longer than 0.3 s"
PROGRESS = event({"method": "notifications/progress", "params": {}})
SERVERS: dict[str, tuple[Any, str]] = {
    "a text": (done(lambda r, told: web.json_response(result(told))), "own"),
    "events": (lambda r, told: stream(r, PROGRESS, b": ping\r\n\r\n", event(result(told))), "own"),
    "an event in pieces": (lambda r, told: stream(r, event(result(told))[:30], event(result(told))[30:]), "own"),
    "an event without an end": (lambda r, told: stream(r, event(result(told))[:-2]), "own"),
    "a large text": (done(lambda r, told: web.json_response(result(told, LARGE))), LARGE),
    "a large event": (lambda r, told: stream(r, event(result(told, LARGE))), LARGE),
    "a text that is compressed": (done(lambda r, told: packed(json.dumps(result(told)).encode())), "own"),
    "an error with a status": (done(lambda r, told: web.json_response(result(told, "no"), status=400)), "no"),
    "an empty text": (done(lambda r, told: web.Response()), NONE),
    "no content": (done(lambda r, told: web.Response(status=202)), NONE),
    "no events": (lambda r, told: stream(r), NONE),
    "progress only": (lambda r, told: stream(r, PROGRESS), NONE),
    "a stream that breaks off": (lambda r, told: stream(r, PROGRESS, broken=True), NONE),
    "an event that breaks off": (lambda r, told: stream(r, event(result(told))[:-9], broken=True), NONE),
    "an answer, then a break": (lambda r, told: stream(r, event(result(told)), broken=True), "own"),
    "a death": (done(lambda r, told: cut(r)), GONE),
    "half a text": (half_a_text, GONE),
    "nothing": (hang, LATE),
    "a stream without an end": (lambda r, told: stream(r, PROGRESS, hangs=True), LATE),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("session", ["", "s1"])
@pytest.mark.parametrize("ids", [[1], [1, 1, 1], [1, "1", 2]], ids=str)
@pytest.mark.parametrize("server", SERVERS)
async def test_each_call_gets_its_own_answer_or_error(
    reports: Reports, server: str, ids: list[Any], session: str
) -> None:
    answer, expected = SERVERS[server]
    together = asyncio.Barrier(len(ids))

    async def handler(request: web.Request) -> web.StreamResponse:
        told = await request.json()
        if told["method"] != "tools/call":
            return web.Response(status=202)
        await together.wait()
        return await answer(request, told)  # type: ignore[no-any-return]

    async def story(client: Client) -> None:
        async def ask(number: Any) -> None:
            headers = {"mcp-session-id": session} if session and server != "no content" else {}
            async with client.post("/mcp", json=call(number), headers=headers) as got:
                text = b""
                try:
                    async for chunk in got.content.iter_any():
                        text += chunk
                except ClientPayloadError:
                    assert server == "an answer, then a break"
            ((answered, value),) = outcome(read(text))
            assert (answered, type(answered)) == (number, type(number))
            assert value == expected or (expected in (NONE, GONE, LATE) and expected in value)

        await asyncio.gather(*map(ask, ids))

    timeout_s = 0.3 if expected == LATE else PATIENCE_S
    await talk(handler, story, timeout_s=timeout_s)
    assert ends(reports) == [expected not in (NONE, GONE, LATE)] * len(ids)


@pytest.mark.asyncio
async def test_equal_ids_are_told_apart_by_the_server_and_are_the_clients_again(reports: Reports) -> None:
    """Each answers when the other has come, the last first: a server that looks up calls by id mixes them up."""
    open_calls: dict[Any, asyncio.Future[Any]] = {}

    async def handler(request: web.Request) -> web.StreamResponse:
        told = await request.json()
        mine = open_calls[told["id"]] = asyncio.get_running_loop().create_future()
        if len(open_calls) == 3:
            for number in reversed(open_calls):
                open_calls[number].set_result(number)
        await mine
        return web.json_response(result(told, told["params"]["arguments"]["n"]))

    async def story(client: Client) -> None:
        async def ask(n: int) -> None:
            async with client.post("/mcp", json=call(1, n=n), headers={"mcp-session-id": "s"}) as got:
                assert outcome([await got.json()]) == [(1, n)]

        await asyncio.gather(*(ask(n) for n in range(3)))

    await talk(handler, story)
    assert ends(reports) == [True] * 3


@pytest.mark.asyncio
async def test_a_batch_is_answered_as_a_batch(reports: Reports) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        told = await request.json()
        if isinstance(told, dict):
            return web.Response(status=202)
        if told[0]["params"]["name"] == "hang":
            await asyncio.Event().wait()
        return web.json_response([result(one) for one in reversed(told)])

    async def story(client: Client) -> None:
        async with client.post("/mcp", json=[call(1), call(1)]) as got:
            assert outcome(await got.json()) == [(1, "own")] * 2
        async with client.post("/mcp", json=[call(1, "hang"), call(2) | {"method": "tools/list"}]) as got:
            assert sorted(number for number, _ in outcome(await got.json())) == [1, 2]

    await talk(handler, story, timeout_s=0.3)


# What clients do


def http(body: bytes, *headers: str, version: str = "1.1", path: str = "/mcp") -> bytes:
    lines = [
        f"POST {path} HTTP/{version}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


CALL = json.dumps(call()).encode()
CLIENTS: dict[str, tuple[bytes, str]] = {
    "HTTP/1.0": (http(CALL, version="1.0"), '"own"'),
    "HTTP/1.0 with a host": (http(CALL, "host: x", version="1.0"), '"own"'),
    "gzip": (http(gzip.compress(CALL), "host: x", "content-encoding: gzip"), '"own"'),
    "deflate": (http(zlib.compress(CALL), "host: x", "content-encoding: deflate"), '"own"'),
    "another encoding": (http(b"?", "host: x", "content-encoding: lz4"), "cannot be read here: send gzip"),
    "gzip that is none": (http(CALL, "host: x", "content-encoding: gzip"), "400 Bad Request"),
    "a last slash": (http(CALL, "host: x", path="/mcp/"), '"own"'),
    "a query": (http(CALL, "host: x", path="/mcp?key=%2F"), '"own"'),
    "expects": (http(CALL, "host: x", "expect: 100-continue"), '"own"'),
    "an upgrade": (
        http(CALL, "host: x", "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMA"),
        '"own"',
    ),
    "a long header": (http(CALL, "host: x", f"authorization: Bearer {'t' * 20_000}"), '"own"'),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 Bad Request"),
    "too long": (http(b" " * (mcp_messages.MOST_BYTES + 1), "host: x"), "413 Request Entity Too Large"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("client_does", CLIENTS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_what_a_client_sends_is_accepted_or_refused_with_the_reason(
    reports: Reports, client_does: str, host: str
) -> None:
    sent, expected = CLIENTS[client_does]

    async def handler(request: web.Request) -> web.StreamResponse:
        assert not {"content-encoding", "upgrade", "http2-settings", "expect"} & {
            name.lower() for name in request.headers
        }
        if request.path == "/mcp" and not request.query:
            raise web.HTTPTemporaryRedirect("/there")
        return web.json_response(result(await request.json()))

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{path:.*}", handler)
    limits = {"max_line_size": 1 << 16, "max_field_size": 1 << 16}
    async with TestServer(app, host=host) as server, asyncio.timeout(PATIENCE_S):
        await server.close()
        server = TestServer(app, host=host)
        await server.start_server(**limits)
        runner = web.AppRunner(Proxy(str(server.make_url("/mcp"))).app(), **limits)  # type: ignore[arg-type]
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, 0)
            await site.start()
            reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            writer.write(sent)
            got = b""
            while expected.encode() not in got and (more := await reader.read(1 << 16)):
                got += more
            writer.close()
            assert expected in got.decode()
        finally:
            await runner.cleanup()
            await server.close()
