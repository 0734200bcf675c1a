"""A held stream: its client is told that it waits, and gets whatever comes then as events of that stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gate_virtual_time import Bench, in_virtual_time, ticket
from test_gate_middleware import CHAT, Exchange

from controlplane.core.model.commands import Admit
from controlplane.core.model.events import ReplyRead, TurnAbandoned
from controlplane.core.model.types import seconds
from controlplane.gate import GateMiddleware
from controlplane.gate.early_stream import waiting

App = Callable[[Any, Any, Any], Any]
STREAM = {**CHAT, "stream": True, "tools": [{}]}
EVENTS = "text/event-stream; charset=utf-8"
LS = b'{"choices": [{"delta": {"tool_calls": [{"function": {"name": "ls", "arguments": ""}}]}, '
CHUNKS = (b"data: " + LS + b'"finish_reason": "tool_calls"}]}\n\n', b"data: [DONE]\n\n")
COMMENTS = b": waiting, 1st\n\n: waiting, 1st\n\n"
HEADERS = {"content-type": EVENTS, "cache-control": "no-cache", "x-accel-buffering": "no"}


def engine(*pieces: bytes, status: int = 200, kind: str = EVENTS) -> App:
    """An application that answers so; without a piece it raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["heard"] = (await receive(), [name for name, _ in scope["headers"]])
        if not pieces:
            raise RuntimeError("the application's own fault")
        named = [(b"content-type", kind.encode()), (b"content-length", b"7")]
        await send({"type": "http.response.start", "status": status, "headers": named})
        for number, piece in enumerate(pieces, 1):
            await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})

    return app


@asynccontextmanager
async def turn(
    bench: Bench, app: App, *, path: str = "/v1/chat/completions", held_s: float = 46, agent: str = "", **body: Any
) -> AsyncIterator[Exchange]:
    """A turn that has been held so long; then it is awaited."""
    middleware = GateMiddleware(app, bench.gate, paths=(path,))
    exchange = Exchange(
        middleware, "POST", path, {"accept-encoding": "gzip", "x-penstock-hold-ms": "5", "user-agent": agent}
    )
    data = json.dumps({**STREAM, **body}).encode()
    exchange.inbound.put_nowait({"type": "http.request", "body": data, "more_body": False})
    await bench.heartbeats_for(held_s)
    yield exchange
    await exchange.task


def starts(exchange: Exchange) -> list[int]:
    return [message["status"] for message in exchange.sent if message["type"] == "http.response.start"]


@in_virtual_time()
async def test_the_engines_stream_follows_the_comments(bench: Bench) -> None:
    async with turn(bench, engine(*CHUNKS)) as exchange:
        assert exchange.body == COMMENTS
        bench.gate.on_command(Admit(program_id="p"))
    hold = b": x-penstock-hold-ms: 46005\n\n"
    assert (starts(exchange), exchange.body) == ([200], COMMENTS + hold + b"".join(CHUNKS))
    turn_id = exchange.headers.pop("x-penstock-turn-id")
    assert {name: value for name, value in exchange.headers.items() if name in HEADERS} == HEADERS
    assert "content-length" not in exchange.headers
    assert exchange.sent[-1]["more_body"] is False
    assert bench.of(ReplyRead) == [ReplyRead(program_id="p", turn_id=turn_id, tool="ls", tool_calls=1)]
    message, headers = exchange.scope["heard"]
    assert json.loads(message["body"]) == STREAM
    assert b"accept-encoding" not in headers, "a compressed stream could not follow a plain comment"
    assert bench.gate.health()["running_turns"] == 0


@pytest.mark.parametrize(
    ("path", "agent", "events"),
    [
        ("/v1/responses", "codex_exec/0.171.0 (Debian 12.0.0; x86_64)", 2),
        ("/v1/responses", "OpenAI/Python 2.8.0", 0),
        ("/v1/chat/completions", "codex_exec/0.171.0", 0),
    ],
)
@in_virtual_time()
async def test_only_a_client_that_counts_no_comments_gets_events(
    bench: Bench, path: str, agent: str, events: int
) -> None:
    async with turn(bench, engine(*CHUNKS), path=path, agent=agent, input="hello") as exchange:
        assert exchange.body.count(b'\n\nevent: keepalive\ndata: {"type":"keepalive"') == events
        bench.gate.on_command(Admit(program_id="p"))


FASTAPI, SGLANG = (
    b'{"detail": "no"}',
    b'{"object": "error", "message": "no", "type": "BadRequestError", "code": 400}',
)
VLLM = b'{"error": {"message": "no", "type": "NotFoundError", "param": "model", "code": 404}}'
CLAUDE = b'{"type": "error", "error": {"type": "not_found_error", "message": "no"}}'
JSON = "application/json"
FAILED = "the engine's server failed"
# Path, the application, and of the error: its status, type, code, message.
ENDINGS: dict[str, tuple[str, App, tuple[object, ...]]] = {
    "vLLM's error": ("chat", engine(VLLM[:9], VLLM[9:], status=404, kind=JSON), (404, "NotFoundError", 404, "no")),
    "SGLang's": ("generate", engine(SGLANG, status=400, kind=JSON), (400, "BadRequestError", 400, "no")),
    "FastAPI's": (
        "chat",
        engine(FASTAPI, status=422, kind=JSON),
        (422, "invalid_request_error", "engine_error", "no"),
    ),
    "a text": (
        "completions",
        engine(b"no", status=502, kind="text/plain"),
        (502, "server_error", "engine_error", "no"),
    ),
    "an empty one": (
        "chat",
        engine(b"", status=500),
        (500, "server_error", "engine_error", "the engine answered 500"),
    ),
    "no JSON after all": (
        "chat",
        engine(b"[" * 99_999, status=503),
        (503, "service_unavailable", "engine_error", "[" * 1000),
    ),
    "Anthropic's": (
        "messages",
        engine(CLAUDE, status=404, kind=JSON),
        (404, "not_found_error", "engine_error", "no"),
    ),
    "of the Responses": ("responses", engine(VLLM, status=404, kind=JSON), (404, "NotFoundError", 404, "no")),
    "an exception": ("messages", engine(), (500, "api_error", "engine_error", FAILED)),
    "no stream": (
        "chat",
        engine(b"{}", kind=JSON),
        (502, "server_error", "no_stream", f"the engine answered 200 with {JSON}, not with a stream"),
    ),
}
PATHS = {"chat": "/v1/chat/completions", "generate": "/generate"}


def error_of(path: str, stream: bytes) -> dict[str, Any]:
    """What an SDK raises for; that each raises indeed shows tests/agents/test_waiting_clients.py."""
    *comments, last = stream.split(b"\n\n", 2)
    assert comments == [b": waiting, 1st"] * 2
    named = b"event: error\n" if path in ("/v1/messages", "/v1/responses") else b""
    ending = b"\n\n" if named else b"\n\ndata: [DONE]\n\n"
    assert last.startswith(named + b"data: ") and last.endswith(ending)
    told = json.loads(last.removeprefix(named).removeprefix(b"data: ").removesuffix(ending))
    assert told.get("type") == ("error" if named else None)
    assert path != "/v1/responses" or (told["message"], told["code"]) == (
        told["error"]["message"],
        told["error"]["code"],
    )
    return dict(told["error"])


@pytest.mark.parametrize("ending", ENDINGS)
@in_virtual_time()
async def test_what_is_no_good_stream_becomes_an_error_of_the_paths_sdk(bench: Bench, ending: str) -> None:
    name, app, expected = ENDINGS[ending]
    path = PATHS.get(name, f"/v1/{name}")
    try:
        async with turn(bench, app, path=path) as exchange:
            bench.gate.on_command(Admit(program_id="p"))
    except RuntimeError:
        assert ending == "an exception"
    error = error_of(path, exchange.body)
    assert tuple(error[field] for field in ("status", "type", "code", "message")) == expected
    assert (starts(exchange), exchange.sent[-1]["more_body"]) == ([200], False)
    assert len(bench.of(TurnAbandoned)) == (ending != "no stream"), "the engine took what it answered with a 200"
    assert bench.gate.health()["running_turns"] == 0


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/messages", "/v1/responses"])
@in_virtual_time()
async def test_a_refusal_after_the_headers_is_an_error_that_says_when_to_come_again(
    bench: Bench, path: str
) -> None:
    async with turn(bench, engine(), path=path) as exchange:
        bench.gate.close()
    error = error_of(path, exchange.body)
    assert (error["status"], error["code"], error["held_s"], error["retry_after_s"]) == (
        503,
        "gate_closed",
        46.0,
        5,
    )
    assert (starts(exchange), exchange.sent[-1]["more_body"]) == ([200], False)


UNTOUCHED: dict[str, dict[str, Any]] = {
    "not yet": {"held_s": 29},
    "no stream": {"stream": False},
    "a word for true": {"stream": "true"},
    "an API whose streams are lines": {"path": "/api/chat"},
}


async def untouched(bench: Bench, **how: Any) -> None:
    async with turn(bench, engine(VLLM, status=404, kind=JSON), **how) as exchange:
        assert exchange.sent == []
        bench.gate.on_command(Admit(program_id="p"))
    assert (exchange.status, exchange.body, exchange.headers["content-type"]) == (404, VLLM, JSON)
    assert int(exchange.headers["x-penstock-hold-ms"]) == 5 + 1000 * how.get("held_s", 46)


@pytest.mark.parametrize("how", UNTOUCHED)
@in_virtual_time()
async def test_who_gets_no_early_headers_sees_the_engines_status(bench: Bench, how: str) -> None:
    await untouched(bench, **UNTOUCHED[how])


@in_virtual_time(early_headers_ns=0)
async def test_it_can_be_switched_off(bench: Bench) -> None:
    await untouched(bench)


@pytest.mark.parametrize("raises", [False, True], ids=["the server drops what is sent", "the server raises"])
@in_virtual_time()
async def test_a_client_that_leaves_is_out_of_the_queue_at_once(bench: Bench, raises: bool) -> None:
    async with turn(bench, engine()) as exchange:
        if raises:
            exchange.broken = True
            await bench.heartbeats_for(15)
        exchange.leave()
        await bench.settle()
        assert (bench.gate.health()["held_turns"], len(bench.of(TurnAbandoned))) == (0, 1)
    assert starts(exchange) == [200]
    assert raises or (exchange.sent[-1]["body"], exchange.sent[-1]["more_body"]) == (b"", False)


@in_virtual_time()
async def test_a_server_that_stops_takes_the_turn_from_the_queue(bench: Bench) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with turn(bench, engine()) as exchange:
            exchange.task.cancel()
    assert bench.gate.health()["held_turns"] == 0


@in_virtual_time(time_scale=10.0, early_headers_ns=seconds(10))
async def test_comments_come_once_a_second_of_the_wall_at_most_where_the_gates_clock_is_fast(bench: Bench) -> None:
    """The virtual loop's second is the wall's."""
    async with turn(bench, engine(), held_s=4.2) as exchange:
        assert exchange.body.count(b": waiting") == 3, "after one second, then each 1.5"
        exchange.leave()


@in_virtual_time()
async def test_the_place_counts_programs_that_have_waited_longer_and_long_holds_are_counted(bench: Bench) -> None:
    """A program waits since its first turn came; its others have the same place."""
    turns = {}
    for name in ("a/1", "b/1", "a/2", "c/1"):
        turns[name] = bench.enter(name)
        await bench.heartbeats_for(1)
    places = {name: bench.gate.place_of(ticket(name)) for name in turns}
    assert places == {"a/1": 1, "b/1": 2, "a/2": 1, "c/1": 3}
    bench.gate.on_command(Admit(program_id="a"))
    await bench.heartbeats_for(47)
    assert [bench.gate.place_of(ticket(name)) for name in ("a/1", "b/1", "c/1")] == [0, 1, 2]
    bench.gate.close()
    await asyncio.gather(*turns.values(), return_exceptions=True)
    assert bench.gate.counters.held_long == 1, "b; a was let in, and c came one second too late for 50"


@pytest.mark.parametrize(
    ("place", "expected_s", "told"),
    [
        (1, None, "waiting, 1st"),
        (2, 40.4, "waiting, 2nd, about 40 s"),
        (3, 0.0, "waiting, 3rd, about 0 s"),
        (11, None, "waiting, 11th"),
        (112, None, "waiting, 112th"),
        (121, None, "waiting, 121st"),
    ],
)
def test_the_comment_says_place_and_time(place: int, expected_s: float | None, told: str) -> None:
    assert waiting(place, expected_s) == told
