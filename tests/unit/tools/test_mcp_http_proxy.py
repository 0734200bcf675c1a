"""The proxy between an MCP client and a double of its server, over real sockets."""

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
from aiohttp import ClientPayloadError, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer
from support.reports import Reports

from controlplane.core.model.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
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


@contextlib.asynccontextmanager
async def talking(handler: Handler, **options: Any) -> AsyncIterator[Client]:
    """A client of a proxy before a server that answers with ``handler``."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        proxy = TestServer(Proxy(str(server.make_url("/mcp")), **options).app())
        unbounded = TCPConnector(limit=0)
        async with TestClient(proxy, connector=unbounded) as client, asyncio.timeout(PATIENCE_S):
            yield client


@contextlib.asynccontextmanager
async def serving(app: web.Application, host: str) -> AsyncIterator[TestServer]:
    server = TestServer(app, host=host)
    await server.start_server(max_line_size=1 << 16, max_field_size=1 << 16)
    try:
        yield server
    finally:
        await server.close()


def call(number: Any = 1, name: str = "look", **arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


def result(message: Any, value: Any = "own") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"value": value}}


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


async def half_a_text(request: web.Request, message: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "999"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc"')
    return cut(request)


async def hang(request: web.Request, message: Any) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def done(make: Callable[[web.Request, Any], web.StreamResponse]) -> Any:
    async def answer(request: web.Request, message: Any) -> web.StreamResponse:
        return make(request, message)

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
    "a text": (done(lambda r, message: web.json_response(result(message))), "own"),
    "events": (lambda r, message: stream(r, PROGRESS, b": ping\r\n\r\n", event(result(message))), "own"),
    "an event in pieces": (
        lambda r, message: stream(r, event(result(message))[:30], event(result(message))[30:]),
        "own",
    ),
    "an event without an end": (lambda r, message: stream(r, event(result(message))[:-2]), "own"),
    "a large text": (done(lambda r, message: web.json_response(result(message, LARGE))), LARGE),
    "a large event": (lambda r, message: stream(r, event(result(message, LARGE))), LARGE),
    "a text that is compressed": (done(lambda r, message: packed(json.dumps(result(message)).encode())), "own"),
    "an error with a status": (done(lambda r, message: web.json_response(result(message, "no"), status=400)), "no"),
    "an empty text": (done(lambda r, message: web.Response()), NONE),
    "no content": (done(lambda r, message: web.Response(status=202)), NONE),
    "no events": (lambda r, message: stream(r), NONE),
    "progress only": (lambda r, message: stream(r, PROGRESS), NONE),
    "a stream that breaks off": (lambda r, message: stream(r, PROGRESS, broken=True), NONE),
    "an event that breaks off": (lambda r, message: stream(r, event(result(message))[:-9], broken=True), NONE),
    "an answer, then a break": (lambda r, message: stream(r, event(result(message)), broken=True), "own"),
    "a death": (done(lambda r, message: cut(r)), GONE),
    "half a text": (half_a_text, GONE),
    "nothing": (hang, LATE),
    "a stream without an end": (lambda r, message: stream(r, PROGRESS, hangs=True), LATE),
}


@pytest.mark.parametrize(("server", "session"), [*zip(SERVERS, cycle(["", "s1"]), strict=False)])
async def test_each_call_gets_its_own_answer_or_error(reports: Reports, server: str, session: str) -> None:
    answer, expected = SERVERS[server]
    ids: list[Any] = [1, 1, "1"]
    together = asyncio.Barrier(len(ids))

    async def handler(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if message["method"] != "tools/call":
            return web.Response(status=202)
        await together.wait()
        return await answer(request, message)  # type: ignore[no-any-return]

    timeout_s = 0.3 if expected == LATE else PATIENCE_S
    async with talking(handler, timeout_s=timeout_s) as client:

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
    assert ends(reports) == [expected not in (NONE, GONE, LATE)] * len(ids)


async def test_a_batch_is_answered_as_a_batch(reports: Reports) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if isinstance(message, dict):
            return web.Response(status=202)
        if message[0]["params"]["name"] == "hang":
            await asyncio.Event().wait()
        return web.json_response([result(one) for one in reversed(message)])

    async with talking(handler, timeout_s=0.3) as client:
        async with client.post("/mcp", json=[call(1), call(1)]) as got:
            assert outcome(await got.json()) == [(1, "own")] * 2
        async with client.post("/mcp", json=[call(1, "hang"), call(2) | {"method": "tools/list"}]) as got:
            assert sorted(number for number, _ in outcome(await got.json())) == [1, 2]


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


@pytest.mark.parametrize(("client_does", "host"), [*zip(CLIENTS, cycle(["127.0.0.1", "::1"]), strict=False)])
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
    async with serving(app, host) as server, serving(Proxy(str(server.make_url("/mcp"))).app(), host) as proxy:
        reader, writer = await asyncio.open_connection(host, proxy.port)
        writer.write(sent)
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            while expected.encode() not in got and (more := await reader.read(1 << 16)):
                got += more
        writer.close()
        assert expected in got.decode()


# What passes besides


async def test_what_is_asked_and_answered_passes_as_it_is(reports: Reports) -> None:
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, str(request.rel_url), request.headers.get("x-own"), await request.read()))
        assert "cookie" not in request.headers, "another client's"
        back = {"x-back": "message", "set-cookie": "whose=mine"}
        return web.Response(body=b'{"jsonrpc":  "2.0", "id": 1, "result": {}}', headers=back)

    async with talking(handler, program="run-1") as client:
        message = json.dumps(call() | {"new": {"of": 2030}}, indent=1).encode()
        async with client.post("/mcp?a=b", data=message, headers={"x-own": "mine"}) as answer:
            assert (answer.status, answer.headers["x-back"]) == (200, "message")
            assert await answer.read() == b'{"jsonrpc":  "2.0", "id": 1, "result": {}}'
        client.session.cookie_jar.clear()
        await (await client.get("/.well-known/oauth-protected-resource?c=d")).read()
        other = ("GET", "/.well-known/oauth-protected-resource?c=d", None, b"")
        assert seen == [("POST", "/mcp?a=b", "mine", message), other]
    (started,) = (event for event in reports.events if isinstance(event, ToolStarted))
    assert (started.program_id, started.tool, ends(reports)) == ("run-1", "look", [True])


async def test_what_a_server_asks_its_client_within_a_call_passes(reports: Reports) -> None:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asks = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}

    async def handler(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if "method" not in message:
            answered.set_result(message)
            return web.Response(status=202)
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        await response.write(event(asks))
        await response.write(event(result(message, (await answered)["result"])))
        return response

    async with (
        talking(handler) as client,
        client.post("/mcp", json=call(), headers={"mcp-session-id": "s"}) as answer,
    ):
        assert read(await answer.content.readuntil(b"\n\n")) == [asks]
        reply = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}
        await (await client.post("/mcp", json=reply, headers={"mcp-session-id": "s"})).read()
        assert outcome(read(await answer.read())) == [(1, {"action": "accept"})]


@pytest.mark.parametrize("comes", ["late", "never"])
@pytest.mark.parametrize("leaves", ["the client", "the server"])
async def test_a_stream_that_ends_early_goes_on_in_another(reports: Reports, leaves: str, comes: str) -> None:
    hung_up = asyncio.Event()
    found: list[Any] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            assert request.headers["last-event-id"] == "7"
            parts = [b"id: 8\n" + event(result(found[0]))] if comes == "late" else []
            return await stream(request, *parts, hangs=True)
        message = await request.json()
        if message["method"] != "tools/call":
            return web.Response(status=202)
        found.append(message)
        try:
            return await stream(request, b"id: 7\ndata: \n\n", hangs=leaves == "the client")
        finally:
            hung_up.set()

    async with talking(handler, timeout_s=0.3 if comes == "never" else PATIENCE_S) as client:
        headers = {"mcp-session-id": "s"}
        async with client.post("/mcp", json=call(), headers=headers) as answer:
            assert await answer.content.readuntil(b"\n\n") == b"id: 7\ndata: \n\n"
            if leaves == "the server":
                assert await answer.read() == b"", "no error: the rest is to come"
            else:
                answer.close()
        await hung_up.wait()
        assert ends(reports) == []
        async with client.get("/mcp", headers={**headers, "last-event-id": "7"}) as answer:
            ((number, value),) = outcome(read(await answer.content.readuntil(b"}\n\n")))
        assert (number, "own" if comes == "late" else "look took longer than 0.3 s and was given up") == (1, value)
        assert ends(reports) == [comes == "late"]


async def test_a_client_that_hangs_up_for_good(reports: Reports) -> None:
    arrived, hung_up = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            hung_up.set()
        raise AssertionError

    async with talking(handler) as client:
        asking = asyncio.create_task(client.post("/mcp", json=call()).__aenter__())
        await arrived.wait()
        asking.cancel()
        await hung_up.wait()
    assert ends(reports) == [False]


async def test_the_older_transport_whose_answers_come_in_one_stream(reports: Reports) -> None:
    streams: dict[str, web.StreamResponse] = {}

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            response = streams[request.query["name"]] = web.StreamResponse(headers=EVENTS)
            await response.prepare(request)
            at = f"event: endpoint\ndata: /messages?session_id={request.query['name']}\n\n"
            await response.write(at.encode())
            await asyncio.Event().wait()
        message = await request.json()
        if message["method"] == "tools/call" and message["params"]["name"] == "look":
            await streams[request.query["session_id"]].write(event(result(message, request.query["session_id"])))
        return web.Response(status=202)

    async with talking(handler, timeout_s=0.3) as client:

        async def one(name: str) -> None:
            async with client.get("/sse", params={"name": name}) as answer:
                at = mcp_messages.event_data(await answer.content.readuntil(b"\n\n")).decode()
                for tool, expected in [("look", name), ("hang", "hang took longer than 0.3 s and was given up")]:
                    async with client.post(at, json=call(1, tool)) as accepted:
                        assert accepted.status == 202
                    assert outcome(read(await answer.content.readuntil(b"\n\n"))) == [(1, expected)]

        await asyncio.gather(one("a"), one("b"))
    assert sorted(ends(reports)) == [False, False, True, True]


@pytest.mark.parametrize("over", ["deleted", "forgotten"])
async def test_sessions_are_programs_of_their_own_and_end_when_they_are_over(reports: Reports, over: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return web.Response(status=200 if over == "deleted" else 404)
        return web.json_response(result(await request.json()))

    async with talking(handler) as client:
        for name in ("one", "two", "one"):
            await (await client.post("/mcp", json=call(), headers={"mcp-session-id": name})).read()
        arrived = [event.program_id for event in reports.events if isinstance(event, ProgramArrived)]
        started = [event.program_id for event in reports.events if isinstance(event, ToolStarted)]
        assert started == [arrived[0], arrived[1], arrived[0]]
        await (await client.delete("/mcp", headers={"mcp-session-id": "two"})).read()
        assert [e.program_id for e in reports.events if isinstance(e, ProgramEnded)] == [arrived[1]]
    assert len([event for event in reports.events if isinstance(event, ProgramEnded)]) == 2, "and with the proxy"


async def test_a_server_that_refuses_or_is_not_there(reports: Reports) -> None:
    async def refuses(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text="who are you?", headers={"www-authenticate": "Bearer"})

    async with talking(refuses) as client, client.post("/mcp", json=call()) as answer:
        assert (answer.status, await answer.text()) == (401, "who are you?")
        assert answer.headers["www-authenticate"] == "Bearer"
    async with TestClient(TestServer(Proxy("http://127.0.0.1:9/mcp").app())) as client:
        async with client.post("/mcp", json=call()) as answer:
            assert answer.status == 502
            assert "the MCP server does not answer: Cannot connect" in (await answer.json())["error"]["message"]
        async with client.get("/mcp") as answer:
            assert answer.status == 502
    assert ends(reports) == [False, False]


async def test_a_message_that_is_too_long_to_be_read_passes_in_parts(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_http_exchange, "Splitter", lambda end: mcp_messages.Splitter(end, 1 << 16))

    async def handler(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if message["params"]["name"] == "events":
            return await stream(request, event(result(message, LARGE)), PROGRESS)
        return web.json_response(result(message, LARGE))

    async with talking(handler) as client:
        for form in ("events", "text"):
            async with client.post("/mcp", json=call(1, form)) as answer:
                assert outcome(read(await answer.read())) == [(1, LARGE)]
    assert ends(reports) == [True, True]


@pytest.mark.parametrize("url", ["ftp://x/mcp", "localhost:8000/mcp"])
def test_an_address_that_is_none_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mcp_http_proxy", url])
    with pytest.raises(SystemExit):
        mcp_http_proxy.main()
    assert "is no http:// or https:// address" in capsys.readouterr().err
