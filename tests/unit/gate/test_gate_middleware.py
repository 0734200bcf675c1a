"""The middleware at the level of ASGI messages, without a server."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from gate_virtual_time import Beat

from controlplane.core.commands import Admit
from controlplane.core.events import Event, ReplyRead, TurnAbandoned, TurnQueued
from controlplane.gate import Continuity, Gate, GatedRequest, GateLimits, GateMiddleware

pytestmark = pytest.mark.asyncio

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
        self.scope: Message = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.task = asyncio.ensure_future(app(self.scope, self.inbound.get, self._send))

    async def _send(self, message: Message) -> None:
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
    """A middleware around an app double, with a governed gate."""

    def __init__(self, *, governed: bool = True, **limits: Any) -> None:
        self.events: list[Event] = []
        self.app = AppDouble()
        self.gate = Gate(
            send=lambda event, _urgent: self.events.append(event),
            now_ns=lambda: 0,
            limits=GateLimits(**limits),
        )
        if governed:
            self.gate.on_heartbeat(Beat())
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.middleware = GateMiddleware(self.app, self.gate, on_loop=self.loops.append)

    def request(
        self,
        body: object,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        chunks: int = 1,
        **headers: str,
    ) -> Exchange:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        exchange = Exchange(self.middleware, method, path, named)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = -(-len(data) // chunks) or 1
        parts = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
        for index, part in enumerate(parts):
            exchange.inbound.put_nowait({"type": "http.request", "body": part, "more_body": index < len(parts) - 1})
        return exchange


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def run(story: Callable[[Bench], Coroutine[Any, Any, None]], **settings: Any) -> None:
    await story(Bench(**settings))


async def test_a_turn_is_held_then_served_with_its_body_and_identity() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT, chunks=5)
        await settle()
        assert exchange.sent == []
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
        assert request.ticket.turn_id == bench.events[0].turn_id  # type: ignore[attr-defined]
        assert exchange.headers["x-penstock-turn-id"] == request.ticket.turn_id
        assert exchange.scope["state"]["penstock"] is request
        assert bench.gate.health()["running_turns"] == 0

    await run(story)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"]
)
async def test_each_way_to_ask_for_a_turn_is_gated(path: str) -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request({"prompt": "x", "session_id": "s"}, path=path)
        await settle()
        assert not exchange.task.done()
        exchange.leave()
        await exchange.task

    await run(story)


async def test_what_a_gate_before_held_is_told_with_the_rest() -> None:
    async def story(bench: Bench) -> None:
        for before, told in (("1200", "1200"), ("long", "0")):
            exchange = bench.request(CHAT, x_penstock_hold_ms=before)
            await exchange.task
            assert exchange.headers["x-penstock-hold-ms"] == told

    await run(story, governed=False)


async def test_everything_else_passes_untouched() -> None:
    async def story(bench: Bench) -> None:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/messages/count_tokens"),
            ("GET", "/v1/responses"),
        ):
            exchange = bench.request(b"", path=path, method=method)
            await exchange.task
            assert exchange.headers == {"x-app": "1"}
        await bench.middleware({"type": "lifespan"}, asyncio.Queue().get, bench.app)  # type: ignore[arg-type]
        assert bench.app.heard == ["lifespan"]
        assert bench.events == []
        assert bench.loops == [asyncio.get_running_loop()]

    await run(story)


async def test_a_client_that_leaves_while_held_is_never_served() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT)
        await settle()
        exchange.leave()
        await exchange.task
        assert exchange.status == 499
        assert bench.app.requests == []
        assert [type(event) for event in bench.events] == [TurnQueued, TurnAbandoned]

    await run(story)


async def test_a_client_that_leaves_in_the_instant_of_the_grant_is_not_served_either() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT)
        await settle()
        bench.gate.on_command(Admit(program_id="p"))
        exchange.leave()
        await exchange.task
        assert bench.app.requests == []
        assert [type(event) for event in bench.events] == [TurnQueued, TurnAbandoned]
        assert bench.gate.health()["running_turns"] == 0

    await run(story)


@pytest.mark.parametrize("held", [True, False])
async def test_the_application_hears_of_a_later_disconnect(held: bool) -> None:
    async def story(bench: Bench) -> None:
        bench.app.wait_for_disconnect = True
        if not held:
            bench.gate.on_command(Admit(program_id="p"))
        exchange = bench.request(CHAT)
        await settle()
        bench.gate.on_command(Admit(program_id="p"))
        await settle()
        assert not exchange.task.done()
        exchange.leave()
        await exchange.task
        assert bench.app.heard == ["http.disconnect"]

    await run(story)


async def test_a_client_that_leaves_before_its_request_is_complete_is_forgotten() -> None:
    async def story(bench: Bench) -> None:
        exchange = Exchange(bench.middleware, "POST", "/generate", {})
        exchange.inbound.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        exchange.leave()
        await exchange.task
        assert (exchange.status, bench.events, bench.app.requests) == (499, [], [])

    await run(story)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
async def test_what_is_no_json_object_is_the_applications_to_refuse(body: bytes) -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(body)
        await exchange.task
        assert bench.app.bodies == [body]
        assert bench.app.requests == [None]
        assert bench.events == []

    await run(story)


async def test_a_body_beyond_the_bound_is_refused() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT, chunks=3)
        await exchange.task
        assert exchange.status == 413
        assert json.loads(exchange.body)["error"]["code"] == "body_too_large"

    await run(story, max_body_bytes=60)


async def test_a_full_queue_answers_429_as_openais_clients_expect_it() -> None:
    async def story(bench: Bench) -> None:
        first = bench.request(CHAT)
        await settle()
        second = bench.request(CHAT, x_penstock_program_id="new")
        await second.task
        assert second.status == 429
        assert second.headers["retry-after"] == "5"
        error = json.loads(second.body)["error"]
        assert (error["code"], error["type"], error["program_id"]) == ("queue_full", "rate_limit_error", "new")
        assert (error["held_s"], error["retry_after_s"]) == (0, 5)
        first.leave()
        await first.task

    await run(story, max_held=1)


async def test_anthropics_clients_are_told_in_their_own_shape() -> None:
    async def story(bench: Bench) -> None:
        first = bench.request(CHAT)
        await settle()
        second = bench.request(CHAT, path="/v1/messages", x_penstock_program_id="new")
        await second.task
        assert (second.status, second.headers["retry-after"]) == (429, "5")
        told = json.loads(second.body)
        assert (told["type"], told["error"]["type"]) == ("error", "rate_limit_error")
        assert (told["error"]["code"], told["error"]["program_id"]) == ("queue_full", "new")
        bad = bench.request({**CHAT, "program_id": "x" * 300}, path="/v1/messages")
        await bad.task
        assert (bad.status, json.loads(bad.body)["error"]["type"]) == (400, "invalid_request_error")
        bench.gate.close()
        await first.task
        third = bench.request(CHAT, path="/v1/messages")
        await third.task
        assert (third.status, json.loads(third.body)["error"]["type"]) == (503, "overloaded_error")

    await run(story, max_held=1)


async def test_closing_answers_503_to_the_held() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT)
        await settle()
        bench.gate.close()
        await exchange.task
        assert exchange.status == 503
        assert exchange.headers["retry-after"] == "5"

    await run(story)


async def test_a_bad_identity_is_refused_with_its_place() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request({**CHAT, "program_id": "x" * 300})
        await exchange.task
        assert exchange.status == 400
        assert "body program_id" in json.loads(exchange.body)["error"]["message"]

    await run(story)


async def test_health_is_served_and_is_json() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(b"", path="/penstock/health", method="GET")
        await exchange.task
        health = json.loads(exchange.body)
        assert (exchange.status, health["mode"], health["limit"]) == (200, "governed", 4)

    await run(story)


async def test_an_application_that_fails_gives_its_turn_back() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the application's own fault")

    async def story(bench: Bench) -> None:
        exchange = Exchange(GateMiddleware(failing, bench.gate), "POST", "/generate", {})
        exchange.inbound.put_nowait({"type": "http.request", "body": json.dumps(CHAT).encode(), "more_body": False})
        with pytest.raises(RuntimeError):
            await exchange.task
        assert bench.gate.health()["running_turns"] == 0
        assert [type(event) for event in bench.events] == [TurnAbandoned]

    await run(story, governed=False)


async def test_a_server_that_stops_while_a_turn_is_held_takes_it_from_the_queue() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT)
        await settle()
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task
        assert bench.gate.health()["held_turns"] == 0

    await run(story)


async def test_a_turn_ends_with_its_reply_not_with_what_the_application_does_behind_it() -> None:
    async def story(bench: Bench) -> None:
        behind = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await bench.app(scope, receive, send)
            await behind.wait()

        exchange = Exchange(GateMiddleware(app, bench.gate), "POST", "/generate", {})
        exchange.inbound.put_nowait({"type": "http.request", "body": b'{"text": "one"}', "more_body": False})
        await settle()
        assert exchange.body == b"done"
        assert not exchange.task.done()
        assert bench.gate.health()["running_turns"] == 0
        behind.set()
        await exchange.task

    await run(story, governed=False)


async def test_a_path_below_the_root_path_is_gated_too() -> None:
    async def story(bench: Bench) -> None:
        for root, path, gated in (
            ("/api", "/api/v1/completions", True),
            ("/api/", "/api/v1/completions", True),
            ("/api", "/apiv1/completions", False),
            ("", "/api/v1/completions", False),
        ):
            exchange = Exchange(bench.middleware, "POST", path, {})
            exchange.scope["root_path"] = root
            exchange.inbound.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
            await exchange.task
            assert (bench.app.requests[-1] is not None) == gated, (root, path)

    await run(story, governed=False)


async def test_a_put_is_gated_as_a_post_is() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request({"text": "one"}, path="/generate", method="PUT")
        await exchange.task
        assert bench.app.requests[-1] is not None

    await run(story, governed=False)


async def test_the_health_page_shows_what_it_is_given() -> None:
    async def story(bench: Bench) -> None:
        middleware = GateMiddleware(bench.app, bench.gate, health=lambda: {"more": 1})
        exchange = Exchange(middleware, "GET", "/penstock/health", {})
        await exchange.task
        assert json.loads(exchange.body) == {"more": 1}

    await run(story)


async def test_the_tools_that_a_reply_calls_are_told_after_it() -> None:
    async def story(bench: Bench) -> None:
        exchange = bench.request(CHAT)
        await settle()
        bench.gate.on_command(Admit(program_id="p"))
        bench.app.reply = json.dumps({"choices": [{"message": {"content": "```bash\nls && pwd\n```"}}]}).encode()
        await exchange.task
        turn_id = bench.events[0].turn_id  # type: ignore[attr-defined]
        assert bench.events[1:] == [ReplyRead(program_id="p", turn_id=turn_id, tool="ls", tool_calls=2)]
        assert exchange.body == bench.app.reply

    await run(story)


@pytest.mark.parametrize(
    ("status", "is_last"),
    [
        (200, True),
        (400, True),
        (404, True),
        (413, True),
        *((status, False) for status in (408, 409, 429, 500, 503)),
    ],
)
async def test_the_last_turn_is_told_whatever_its_reply_unless_its_client_tries_again(
    status: int, is_last: bool
) -> None:
    async def story(bench: Bench) -> None:
        bench.gate.on_command(Admit(program_id="p"))
        bench.app.status, bench.app.reply = status, b"x" * 3_000_000
        exchange = bench.request({**CHAT, "is_last_step": True})
        await exchange.task
        name = exchange.headers["x-penstock-turn-id"]
        last = ReplyRead(program_id="p", turn_id=name, is_last=True)
        refused = TurnAbandoned(program_id="p", turn_id=name, reason=f"the engine's server answered {status}")
        assert bench.events == [refused] * (status >= 400) + [last] * is_last

    await run(story)


@pytest.mark.parametrize(("begun", "is_last"), [(True, True), (False, False)])
async def test_the_last_turn_of_a_client_that_left_is_told_once_its_reply_had_begun(
    begun: bool, is_last: bool
) -> None:
    async def cut(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def story(bench: Bench) -> None:
        exchange = Exchange(GateMiddleware(cut, bench.gate), "POST", "/generate", {})
        body = json.dumps({**CHAT, "is_last_step": True}).encode()
        exchange.inbound.put_nowait({"type": "http.request", "body": body, "more_body": False})
        await exchange.task
        assert [getattr(event, "is_last", None) for event in bench.events] == [True] * is_last

    await run(story, governed=False)


async def test_a_reply_that_nobody_can_read_is_not_spoken_of() -> None:
    async def story(bench: Bench) -> None:
        for body in (CHAT, {"messages": []}):  # the second names nobody
            exchange = bench.request(body)
            await settle()
            for event in list(bench.events):
                bench.gate.on_command(Admit(program_id=getattr(event, "program_id", "")))
            await exchange.task
        assert not [event for event in bench.events if isinstance(event, ReplyRead)]

    await run(story)


async def test_a_client_that_names_nobody_is_known_by_how_its_prompts_go_on() -> None:
    async def story(bench: Bench) -> None:
        middleware = GateMiddleware(bench.app, bench.gate, continuity=Continuity())
        first = [{"role": "user", "content": "a"}]
        more = [*first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "b"}]
        for messages in (first, more, [{"role": "user", "content": "c"}]):
            exchange = Exchange(middleware, "POST", "/v1/chat/completions", {})
            data = json.dumps({"messages": messages}).encode()
            exchange.inbound.put_nowait({"type": "http.request", "body": data, "more_body": False})
            await exchange.task
        named = Exchange(middleware, "POST", "/v1/chat/completions", {"x-session-id": "s"})
        data = json.dumps({"messages": more}).encode()
        named.inbound.put_nowait({"type": "http.request", "body": data, "more_body": False})
        await named.task
        programs = [request.identity.program_id for request in bench.app.requests if request is not None]
        assert programs[0] == programs[1]
        assert len(set(programs)) == 3
        assert programs[3] == "s"

    await run(story, governed=False)
