"""The middleware at the level of ASGI messages, without a server."""

import asyncio
import json
from typing import Any

import pytest
from gate_virtual_time import Beat

from controlplane.core.model.commands import Admit
from controlplane.core.model.events import Event, ReplyRead, TurnAbandoned, TurnQueued
from controlplane.gate import Gate, GatedRequest, GateLimits, GateMiddleware

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two"}], "program_id": "p"}
Message = dict[str, Any]


class AppDouble:
    """Answers with what the gate left for it; waits for a disconnect first when told to."""

    def __init__(self) -> None:
        self.requests: list[GatedRequest | None] = []
        self.bodies: list[bytes] = []
        self.wait_for_disconnect = False
        self.reply = b"done"
        self.status = 200
        self.heard: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            self.heard.append(scope["type"])
            return
        self.requests.append(scope.get("penstock"))
        message = await receive()
        self.bodies.append(message.get("body", b""))
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"x-app", b"1")]})
        if self.wait_for_disconnect:
            self.heard.append((await receive())["type"])
        await send({"type": "http.response.body", "body": self.reply, "more_body": False})


class Exchange:
    """One request in progress: its client's side."""

    def __init__(self, app: Any, method: str, path: str, headers: dict[str, str]) -> None:
        self.inbound: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.broken = False  # its server raises for what it cannot send
        self.scope: Message = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.task = asyncio.ensure_future(app(self.scope, self.inbound.get, self._send))

    async def _send(self, message: Message) -> None:
        if self.broken:
            raise OSError("the client left")
        self.sent.append(message)

    def leave(self) -> None:
        self.inbound.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


class Bench:
    """A middleware around an app double, or another ``app``, with a governed gate."""

    def __init__(
        self, app: Any = None, *, governed: bool = True, options: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        self.events: list[Event] = []
        self.app = AppDouble()
        self.gate = Gate(
            send=lambda event, _urgent: self.events.append(event), now_ns=lambda: 0, limits=GateLimits(**limits)
        )
        if governed:
            self.gate.on_heartbeat(Beat())
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.middleware = GateMiddleware(app or self.app, self.gate, on_loop=self.loops.append, **(options or {}))

    def request(
        self,
        body: object = CHAT,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        chunks: int = 1,
        root: str = "",
        **headers: str,
    ) -> Exchange:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        exchange = Exchange(self.middleware, method, path, named)
        exchange.scope["query_string"] = query.encode()
        exchange.scope["root_path"] = root
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = -(-len(data) // chunks) or 1
        parts = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
        for index, part in enumerate(parts):
            exchange.inbound.put_nowait({"type": "http.request", "body": part, "more_body": index < len(parts) - 1})
        return exchange

    async def held(self, body: object = CHAT, **more: Any) -> Exchange:
        """A request that waits for its grant."""
        exchange = self.request(body, **more)
        await settle()
        assert exchange.sent == []
        return exchange

    async def answered(self, body: object = CHAT, **more: Any) -> Exchange:
        """A request that needs no grant, or is refused."""
        exchange = self.request(body, **more)
        await exchange.task
        return exchange

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_turn_is_held_then_served_with_its_body_and_identity() -> None:
    bench = Bench()
    exchange = await bench.held(chunks=5)
    assert [type(event) for event in bench.events] == [TurnQueued]
    bench.gate.on_command(Admit(program_id="p"))
    await exchange.task
    assert (exchange.status, exchange.body) == (200, b"done")
    assert exchange.headers["x-penstock-hold-ms"] == "0"
    assert exchange.headers["x-app"] == "1"
    assert json.loads(bench.app.bodies[0]) == CHAT
    request = bench.app.requests[0]
    assert request is not None
    assert (request.identity.program_id, request.body) == ("p", CHAT)
    assert request.ticket.turn_id == bench.of(TurnQueued)[0].turn_id == exchange.headers["x-penstock-turn-id"]
    assert exchange.scope["state"]["penstock"] is request
    assert bench.gate.health()["running_turns"] == 0


@pytest.mark.parametrize(
    ("gated", "method", "root", "path"),
    [
        (True, "POST", "", "/v1/chat/completions"),
        (True, "POST", "", "/v1/completions"),
        (True, "POST", "", "/v1/responses"),
        (True, "POST", "", "/v1/messages"),
        (True, "POST", "", "/generate"),
        (True, "PUT", "", "/generate"),
        (True, "POST", "/api", "/api/v1/completions"),
        (True, "POST", "/api/", "/api/v1/completions"),
        (False, "POST", "/api", "/apiv1/completions"),
        (False, "POST", "", "/api/v1/completions"),
        (False, "GET", "", "/v1/models"),
        (False, "GET", "", "/v1/responses"),
        (False, "POST", "", "/v1/messages/count_tokens"),
    ],
)
async def test_each_way_to_ask_for_a_turn_is_gated_and_nothing_else(
    gated: bool, method: str, root: str, path: str
) -> None:
    bench = Bench()
    exchange = bench.request({"prompt": "x", "session_id": "s"}, method=method, root=root, path=path)
    await settle()
    assert [event.program_id for event in bench.of(TurnQueued)] == ["s"] * gated
    exchange.leave()
    await exchange.task
    assert gated or exchange.headers == {"x-app": "1"}, "it passes untouched"


async def test_the_loop_is_told_once_and_what_is_no_request_passes() -> None:
    bench = Bench()
    for _ in range(2):
        await bench.middleware({"type": "lifespan"}, asyncio.Queue().get, bench.app)  # type: ignore[arg-type]
    assert bench.app.heard == ["lifespan"] * 2
    assert bench.loops == [asyncio.get_running_loop()]


async def test_what_a_gate_before_held_is_told_with_the_rest() -> None:
    bench = Bench(governed=False)
    for before, told in (("1200", "1200"), ("long", "0")):
        assert (await bench.answered(x_penstock_hold_ms=before)).headers["x-penstock-hold-ms"] == told


@pytest.mark.parametrize("granted", [False, True], ids=["while held", "in the instant of the grant"])
async def test_a_client_that_leaves_is_never_served(granted: bool) -> None:
    bench = Bench()
    exchange = await bench.held()
    if granted:
        bench.gate.on_command(Admit(program_id="p"))
    exchange.leave()
    await exchange.task
    assert (exchange.status, bench.app.requests) == (499, [])
    assert [type(event) for event in bench.events] == [TurnQueued, TurnAbandoned]
    assert bench.gate.health()["running_turns"] == 0


@pytest.mark.parametrize("held", [True, False])
async def test_the_application_hears_of_a_later_disconnect(held: bool) -> None:
    bench = Bench()
    bench.app.wait_for_disconnect = True
    if not held:
        bench.gate.on_command(Admit(program_id="p"))
    exchange = bench.request()
    await settle()
    bench.gate.on_command(Admit(program_id="p"))
    await settle()
    assert not exchange.task.done()
    exchange.leave()
    await exchange.task
    assert bench.app.heard == ["http.disconnect"]


async def test_a_client_that_leaves_before_its_request_is_complete_is_forgotten() -> None:
    bench = Bench()
    exchange = Exchange(bench.middleware, "POST", "/generate", {})
    exchange.inbound.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    exchange.leave()
    await exchange.task
    assert (exchange.status, bench.events, bench.app.requests) == (499, [], [])


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
async def test_what_is_no_json_object_is_the_applications_to_refuse(body: bytes) -> None:
    bench = Bench()
    await bench.answered(body)
    assert (bench.app.bodies, bench.app.requests, bench.events) == ([body], [None], [])


REFUSALS = {  # by path: what an error is called for a full queue, a bad identity, a server that stops
    "/v1/chat/completions": ("rate_limit_error", "invalid_request_error", "service_unavailable"),
    "/v1/messages": ("rate_limit_error", "invalid_request_error", "overloaded_error"),
}


@pytest.mark.parametrize("path", REFUSALS)
async def test_a_refusal_has_the_shape_that_its_client_expects(path: str) -> None:
    bench = Bench(max_held=1)
    held = await bench.held(path=path)
    full = await bench.answered(path=path, x_penstock_program_id="new")
    bad = await bench.answered({**CHAT, "program_id": "x" * 300}, path=path)
    bench.gate.close()
    await held.task
    later = await bench.answered(path=path)
    assert [each.status for each in (full, bad, held, later)] == [429, 400, 503, 503]
    assert [each.headers.get("retry-after") for each in (full, bad, held, later)] == ["5", None, "5", "5"]
    told = [json.loads(each.body) for each in (full, bad, later)]
    assert tuple(each["error"]["type"] for each in told) == REFUSALS[path]
    assert [each.get("type") == "error" for each in told] == [path == "/v1/messages"] * 3
    error = told[0]["error"]
    assert (error["code"], error["program_id"]) == ("queue_full", "new")
    assert (error["held_s"], error["retry_after_s"]) == (0, 5)
    assert "body program_id" in told[1]["error"]["message"], "where it stands"


async def test_health_is_served_and_is_json() -> None:
    page = {"path": "/penstock/health", "method": "GET"}
    exchange = await Bench().answered(b"", **page)
    health = json.loads(exchange.body)
    assert (exchange.status, health["mode"], health["limit"]) == (200, "governed", 4)
    other = Bench(options={"health": lambda: {"more": 1}})
    assert json.loads((await other.answered(b"", **page)).body) == {"more": 1}


async def test_an_application_that_fails_gives_its_turn_back() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the application's own fault")

    bench = Bench(failing, governed=False)
    with pytest.raises(RuntimeError):
        await bench.answered()
    assert bench.gate.health()["running_turns"] == 0
    assert [type(event) for event in bench.events] == [TurnAbandoned]


async def test_a_server_that_stops_while_a_turn_is_held_takes_it_from_the_queue() -> None:
    bench = Bench()
    exchange = await bench.held()
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert bench.gate.health()["held_turns"] == 0


async def test_a_turn_ends_with_its_reply_not_with_what_the_application_does_behind_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await bench.app(scope, receive, send)
        await behind.wait()

    bench, behind = Bench(app, governed=False), asyncio.Event()
    exchange = bench.request()
    await settle()
    assert exchange.body == b"done"
    assert not exchange.task.done()
    assert bench.gate.health()["running_turns"] == 0
    behind.set()
    await exchange.task


async def test_the_tools_that_a_reply_calls_are_told_after_it() -> None:
    bench = Bench()
    exchange = await bench.held()
    bench.gate.on_command(Admit(program_id="p"))
    bench.app.reply = json.dumps({"choices": [{"message": {"content": "```bash\nls && pwd\n```"}}]}).encode()
    await exchange.task
    turn_id = bench.of(TurnQueued)[0].turn_id
    assert bench.events[1:] == [ReplyRead(program_id="p", turn_id=turn_id, tool="ls", tool_calls=2)]
    assert exchange.body == bench.app.reply


async def test_a_reply_that_nobody_can_read_is_not_spoken_of() -> None:
    bench = Bench(governed=False)
    for body in (CHAT, {"messages": []}):  # the second names nobody
        await bench.answered(body)
    assert bench.of(ReplyRead) == []


RETRIED = (408, 409, 429, 500, 503)


@pytest.mark.parametrize("status", [200, 400, 404, 413, *RETRIED])
async def test_the_last_turn_is_told_whatever_its_reply_unless_its_client_tries_again(status: int) -> None:
    bench = Bench(governed=False)
    bench.app.status, bench.app.reply = status, b"x" * 3_000_000
    name = (await bench.answered({**CHAT, "is_last_step": True})).headers["x-penstock-turn-id"]
    last = ReplyRead(program_id="p", turn_id=name, is_last=True)
    refused = TurnAbandoned(program_id="p", turn_id=name, reason=f"the engine's server answered {status}")
    assert bench.events == [refused] * (status >= 400) + [last] * (status not in RETRIED)


@pytest.mark.parametrize("begun", [True, False])
async def test_the_last_turn_of_a_client_that_left_is_told_once_its_reply_had_begun(begun: bool) -> None:
    async def cut(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    bench = Bench(cut, governed=False)
    await bench.answered({**CHAT, "is_last_step": True})
    assert [event.is_last for event in bench.of(ReplyRead)] == [True] * begun


async def test_a_client_that_names_nobody_is_known_by_how_its_prompts_go_on() -> None:
    bench = Bench(governed=False)
    first = [{"role": "user", "content": "a"}]
    more = [*first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "b"}]
    for messages in (first, more, [{"role": "user", "content": "c"}]):
        await bench.answered({"messages": messages})
    await bench.answered({"messages": more}, x_session_id="s")
    programs = [request.identity.program_id for request in bench.app.requests if request is not None]
    assert programs[0] == programs[1]
    assert len(set(programs)) == 3
    assert programs[3] == "s"
