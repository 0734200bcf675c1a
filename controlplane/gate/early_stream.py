"""The event stream of a turn that is held: begun before the engine answers, so that nobody takes it for dead.

Its comments are what WHATWG's HTML standard (§9.2.7) advises against proxies that drop silent connections. Clients
skip them. To Codex only events are signs of life (``stream_idle_timeout_ms``, 300 s): it gets one that it ignores,
as OpenAI's own server sends. Others do not: OpenAI's SDK wants ``response.created`` to come first.
"""

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from controlplane.gate.asgi import Message, SendMessage
from controlplane.gate.problems import ANTHROPIC_PATH, problem
from controlplane.gate.requests import GATED_PATHS, HOLD_HEADER, TURN_HEADER, refusal_problem
from controlplane.gate.tickets import Refused

COMMENT_EVERY_S = 15  # as the standard advises: a quarter of what nginx and AWS's balancers wait
_RESPONSES_PATH = "/v1/responses"
_STREAMING_PATHS = frozenset(GATED_PATHS)  # whose streams are events; other APIs' are lines or the server's choice
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx hands each comment on at once
)
_CODEX = b"codex"  # how its user agents begin: codex_exec/0.171, codex_cli_rs/...
_KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'
_MOST_ERROR_BYTES, _MOST_MESSAGE = 1 << 16, 1000
_ERROR_FIELDS = ("type", "param", "code")


def asks_for_stream(path: str, body: dict[str, Any]) -> bool:
    """Whether the reply to this request, if it is good, is a stream of events."""
    return body.get("stream") is True and path in _STREAMING_PATHS


def needs_events(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether comments are no sign of life to this client."""
    agent = next((value for name, value in headers if name.lower() == b"user-agent"), b"")
    return path == _RESPONSES_PATH and agent.startswith(_CODEX)


def waiting(place: int, expected_s: float | None) -> str:
    """What a client that waits is told: its program's place in the queue, and how long that may take."""
    ending = "th" if place // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    about = "" if expected_s is None else f", about {expected_s:.0f} s"
    return f"waiting, {place}{ending}{about}"


class EarlyStream:
    """The reply to one turn of ``path``, whose headers may go out before there is anything to say.

    From then on (``begun``) all that a status would tell becomes an event that the client's SDK raises as an error:
    a refusal, and an engine's reply that is not a good stream. Until then everything passes as it is.
    """

    def __init__(self, path: str, send: SendMessage, turn_id: str, *, needs_events: bool = False) -> None:
        self.begun = False
        self._keepalive = _KEEPALIVE if needs_events else b""
        self._path = path
        self._send = send
        self._turn_id = turn_id
        self._status = 0  # of an engine's reply that cannot follow; 0: it can
        self._kind = ""  # and its content type
        self._error = bytearray()

    async def comment(self, text: str) -> None:
        """Begin the stream if need be, and send a comment. Raises OSError where the client has left."""
        if not self.begun:
            self.begun = True
            headers = [*_HEADERS, (TURN_HEADER.encode(), self._turn_id.encode())]
            await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        await self._body(f": {text}\n\n".encode() + self._keepalive)

    async def refuse(self, refused: Refused) -> None:
        """End a stream that has begun with a refusal."""
        await self._fail(refusal_problem(self._path, refused), refused.status)

    async def fail(self) -> None:
        """End a stream that has begun: the application raised before it answered."""
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        await self._fail(problem(self._path, status, "engine_error", "the engine's server failed"), status)

    async def end(self) -> None:
        """End a stream that nobody reads."""
        await self._body(b"", more=False)

    async def pass_on(self, message: Message) -> None:
        """Send a message of the application's reply as a part of the stream that has begun."""
        if message["type"] == "http.response.start":
            headers = {name.lower(): value.decode("latin-1") for name, value in message.get("headers", ())}
            self._kind = headers.get(b"content-type", "")
            if message["status"] != HTTPStatus.OK or "event-stream" not in self._kind.lower():
                self._status = message["status"]
            elif held_ms := headers.get(HOLD_HEADER.encode()):
                await self.comment(f"{HOLD_HEADER}: {held_ms}")  # no header can tell it any more
        elif message["type"] != "http.response.body" or not self._status:
            await self._send(message)
        else:
            self._error += message.get("body", b"")[: _MOST_ERROR_BYTES - len(self._error)]
            if not message.get("more_body", False):
                await self._fail(*self._engine_error())

    def _engine_error(self) -> tuple[dict[str, Any], int]:
        """What the engine answered instead of a stream, in the path's shape, and its status."""
        if self._status < HTTPStatus.BAD_REQUEST:
            told = f"the engine answered {self._status} with {self._kind or 'no content type'}, not with a stream"
            return problem(self._path, HTTPStatus.BAD_GATEWAY, "no_stream", told), HTTPStatus.BAD_GATEWAY
        text = self._error.decode(errors="replace")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = text
        if isinstance(said, dict):  # OpenAI's and Anthropic's, or SGLang's and FastAPI's
            said = said.get("error", said)
        own = said if isinstance(said, dict) else {"message": said}
        message = own.get("message") or own.get("detail") or text or f"the engine answered {self._status}"
        content = problem(self._path, self._status, "engine_error", str(message)[:_MOST_MESSAGE])
        content["error"] |= {name: own[name] for name in _ERROR_FIELDS if own.get(name) is not None}
        return content, self._status

    async def _fail(self, content: dict[str, Any], status: int) -> None:
        content["error"]["status"] = status
        event, done = b"", b""
        if self._path == ANTHROPIC_PATH:
            event = b"event: error\n"
        elif self._path == _RESPONSES_PATH:  # its own event has these fields; its SDK raises for ``error``
            event = b"event: error\n"
            told = {name: content["error"].get(name) for name in ("code", "message", "param")}
            content = {"type": "error", "sequence_number": 0, **told, **content}
        else:
            done = b"data: [DONE]\n\n"
        await self._body(b"%sdata: %s\n\n%s" % (event, json.dumps(content).encode(), done), more=False)

    async def _body(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
