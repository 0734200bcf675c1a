"""The requests of one MCP session: each gets one answer, its own or an error, whatever the ids that clients choose.

It does no input or output. What passes is unchanged, with one exception: a request whose id is in use goes to the
server under another one, and its answer gets the client's back. A ``tools/call`` is reported as a tool from its
request until its answer, its cancellation or its failure.
"""

import itertools
import json
import math
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Raw

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.mcp_messages import Piece, batch, head_of, members, messages, value, with_member
from engine_hooks.tools.shared import guard

TIMED_OUT = -32001  # the codes that the official SDKs give
CONNECTION_CLOSED = -32000
_META = ("program_id", "session_id", "gen_ai.conversation.id")
_MOST_PAST = 1024
_OWN_IDS_FROM = 1 << 30  # far from what clients count to, and 32 bits hold it


@dataclass(slots=True, eq=False)
class Request:
    """One request of a client.

    ``server_id`` is its id at the server. ``due_s`` is when it has taken too long. ``carried`` is False while no
    HTTP request is open that could bring its answer.
    """

    id: object
    server_id: object
    name: str
    due_s: float = math.inf
    tool: tuple[str, str] | None = None  # program and call, while it runs
    answered: bool = False
    carried: bool = True


class Passed(NamedTuple):
    """What goes to the server (empty: nothing), and the requests in it."""

    data: bytes
    requests: list[Request]


class Owner:
    """Whose calls those are that name no program: ``program``, or one of its own, which ends with it."""

    def __init__(self, to: ToolReporter, program: str = "") -> None:
        self._to = to
        self._program = program or f"mcp-{uuid.uuid4().hex}"
        self._ends = not program  # else others say that it is over
        self._begun = False

    def program(self) -> str:
        """The program, which has begun with the first call."""
        if self._ends and not self._begun:
            self._begun = True
            self._to.program_started(self._program)
        return self._program

    def end(self) -> None:
        """End the program, since the connection is closed."""
        if self._begun:
            self._begun = False
            self._to.program_ended(self._program, "the MCP connection closed")


class Session:
    """Follows the messages of both directions. One thread at a time may call it.

    :param timeout_s: seconds after which a tool's call is ``overdue``; 0: never.
    """

    def __init__(self, to: ToolReporter, owner: Owner, timeout_s: float = 0.0) -> None:
        self.owner = owner
        self._to = to
        self.timeout_s = timeout_s
        self._open: dict[str, Request] = {}  # by the id at the server
        # Given up or cancelled; the server may answer them yet, so their ids stay in use.
        self._past: OrderedDict[str, Request] = OrderedDict()
        self._numbers = itertools.count(1)
        self._tag = uuid.uuid4().hex[:12]

    @property
    def open(self) -> list[Request]:
        """The requests that wait for an answer."""
        return list(self._open.values())

    def from_client(self, data: bytes, now_s: float, program: str = "") -> Passed:
        """Take a client's message or batch. ``program`` is whose calls these are unless they say it themselves."""
        requests: list[Request] = []
        texts, is_batch = messages(data)
        passing = [self._from_client(text, now_s, program, requests) for text in texts]
        return Passed(_joined(data, texts, passing, is_batch), requests)

    def from_server(self, data: bytes) -> bytes:
        """What of a server's message or batch the client gets; empty: nothing, it has had these answers."""
        texts, is_batch = messages(data)
        return _joined(data, texts, [self._from_server(text) for text in texts], is_batch)

    def piece_from_server(self, piece: Piece) -> bytes:
        """The same of a message that may come in pieces. Never raises: what cannot be read passes."""
        if not piece.first:
            return piece.data
        take = self.from_server if piece.whole else self.from_server_in_parts
        passed = guard.run("MCP answer", take, piece.data)
        return piece.data if passed is None else passed

    def from_server_in_parts(self, head: bytes) -> bytes:
        """Take the beginning of a message that is too long to be read; what of it the client gets."""
        found = head_of(head)
        request = None if found is None else self._open.get(_key(found.id))
        if found is None or request is None:
            return head
        self._answered(request, ok=not found.failed)
        return head[: found.place.start] + json.dumps(request.id).encode() + head[found.place.stop :]

    def fail(self, request: Request, text: str, code: int = CONNECTION_CLOSED) -> bytes:
        """The error that answers a request; empty if it has an answer."""
        if request.answered:
            return b""
        self._to_past(request)
        request.answered = True
        return _message(id=request.id, error={"code": code, "message": text})

    def give_up(self, requests: Iterable[Request], now_s: float) -> list[tuple[bytes, bytes]]:
        """Fail those that have taken too long: for each its answer, and the message that stops the server."""
        late = [request for request in requests if request.due_s <= now_s and not request.answered]
        found = []
        for request in late:
            text = f"{request.name} took longer than {self.timeout_s:g} s and was given up"
            parameters = {"requestId": request.server_id, "reason": text}
            stop = _message(method="notifications/cancelled", params=parameters)
            found.append((self.fail(request, text, TIMED_OUT), stop))
        return found

    def close(self) -> None:
        """End all calls and the owner's program, since the connection is closed."""
        for request in self.open:
            self._end_tool(request, ok=False)
        self.owner.end()

    def _from_client(
        self, text: bytes | Raw, now_s: float, program: str, requests: list[Request]
    ) -> bytes | Raw | None:
        message = members(text)
        method, parameters = value(message.get("method")), members(message.get("params", b""))
        if method == "notifications/cancelled":
            return self._cancelled(text, message, parameters)
        request_id = value(message.get("id"))
        if method is None or request_id is None:
            return text
        request = Request(request_id, self._free(request_id), str(method))
        self._open[_key(request.server_id)] = request
        requests.append(request)
        if method == "tools/call":
            self._begin_tool(request, parameters, now_s, program)
        return text if request.server_id == request_id else with_member(text, "id", request.server_id)

    def _cancelled(
        self, text: bytes | Raw, message: dict[str, Raw], parameters: dict[str, Raw]
    ) -> bytes | Raw | None:
        key = _key(value(parameters.get("requestId")))
        meant = [request for request in self._open.values() if _key(request.id) == key]
        if len(meant) > 1:
            return None  # of two clients: nothing says which, and the other's call must go on
        if not meant:
            return text
        (request,) = meant
        self._to_past(request)
        if request.server_id == request.id:
            return text
        changed = with_member(message["params"], "requestId", request.server_id)
        return with_member(text, "params", json.loads(changed))

    def _from_server(self, text: bytes | Raw) -> bytes | Raw | None:
        message = members(text)
        if "method" in message or "id" not in message:
            return text
        key = _key(value(message["id"]))
        request = self._open.get(key) or self._past.pop(key, None)
        if request is None:
            return text
        if request.answered:
            return None
        failed = "error" in message or value(members(message.get("result", b"")).get("isError")) is True
        self._answered(request, ok=not failed)
        return text if request.server_id == request.id else with_member(text, "id", request.id)

    def _answered(self, request: Request, *, ok: bool) -> None:
        self._open.pop(_key(request.server_id), None)
        self._end_tool(request, ok=ok)
        request.answered = True

    def _to_past(self, request: Request) -> None:
        key = _key(request.server_id)
        if self._open.pop(key, None) is not None:
            self._end_tool(request, ok=False)
            self._past[key] = request
            if len(self._past) > _MOST_PAST:
                self._past.popitem(last=False)

    def _free(self, request_id: object) -> object:
        """The id itself, or one that no other request has at the server."""
        free = request_id
        while (key := _key(free)) in self._open or key in self._past:
            number = next(self._numbers)
            free = _OWN_IDS_FROM + number if isinstance(request_id, int) else f"{request_id}~{number}"
        return free

    def _begin_tool(self, request: Request, parameters: dict[str, Raw], now_s: float, program: str) -> None:
        meta = members(parameters.get("_meta", b""))
        names = (name for key in _META if isinstance(name := value(meta.get(key)), str) and name)
        request.name = str(value(parameters.get("name")) or "tool")
        request.tool = (next(names, program) or self.owner.program(), f"{self._tag}-{next(self._numbers)}")
        if self.timeout_s:
            request.due_s = now_s + self.timeout_s
        self._to.tool_started(*request.tool, request.name)

    def _end_tool(self, request: Request, *, ok: bool) -> None:
        if request.tool is not None:
            self._to.tool_ended(*request.tool, ok=ok)
            request.tool = None


def _key(request_id: object) -> str:
    """A request's id as text, which tells 1 from "1"."""
    return json.dumps(request_id)


def _message(**fields: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def _joined(data: bytes, texts: list[bytes | Raw], passing: list[bytes | Raw | None], is_batch: bool) -> bytes:
    """The messages that pass: ``data`` itself where nothing has changed."""
    if all(new is old for new, old in zip(passing, texts, strict=True)):
        return data
    left = [text for text in passing if text is not None]
    if not left:
        return b""
    return batch(left) if is_batch else bytes(left[0])
