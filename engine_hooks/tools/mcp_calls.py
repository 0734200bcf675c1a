"""The tool calls of one MCP connection, read from its JSON-RPC messages.

A ``tools/call`` is a tool from its request until the server answers or the client cancels it. It belongs to the
program that the request's ``_meta`` names (``program_id``, or the client's ``session_id``), else to the program
that the connection was given, else to a program of the connection's own, which ends with it.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.emit.tool_reporter import ToolReporter

_META = ("program_id", "session_id", "gen_ai.conversation.id")
_REQUEST_TIMEOUT = -32001  # the code that the official SDKs give


@dataclass(frozen=True, slots=True)
class _Call:
    request_id: Any
    program_id: str
    name: str
    began_s: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """A call that took too long: the answer to its client, and the message to the server."""

    to_client: bytes
    to_server: bytes


class Calls:
    """Reports the calls in the messages of both directions. Any thread may call it.

    :param program: the program that the calls belong to; empty: one of the connection's own.
    :param timeout_s: seconds after which a call is ``overdue``; 0: never.
    """

    def __init__(
        self,
        to: ToolReporter,
        program: str = "",
        *,
        timeout_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._to = to
        self._own = program or f"mcp-{uuid.uuid4().hex}"
        self._ends = not program  # nobody else will say that it is over
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._open: dict[str, _Call] = {}
        self._given_up: set[str] = set()  # answered here: the server's own answer comes too late
        self._begun = False
        self._lock = threading.Lock()  # a call is answered by the server or given up, not both

    def to_server(self, data: bytes) -> list[Any]:
        """Take note of a client's message or batch; return the ids of the calls in it."""
        called = []
        with self._lock:
            for message in _messages(data):
                parameters = message.get("params")
                parameters = parameters if isinstance(parameters, dict) else {}
                match message.get("method"):
                    case "tools/call" if "id" in message:
                        self._begin(message["id"], parameters)
                        called.append(message["id"])
                    case "notifications/cancelled":
                        self._end(parameters.get("requestId"), ok=False)
        return called

    def to_client(self, data: bytes) -> bool:
        """Take note of a server's message; False if its client must not get it, having had an answer already."""
        answers = [message for message in _messages(data) if "method" not in message and "id" in message]
        with self._lock:
            wanted = [self._answered(message) for message in answers]  # each of them is looked at
        return all(wanted)

    def _answered(self, message: dict[str, Any]) -> bool:
        key, result = _key(message["id"]), message.get("result")
        if key in self._given_up:
            self._given_up.discard(key)
            return False
        failed = "error" in message or (isinstance(result, dict) and bool(result.get("isError")))
        self._end(message["id"], ok=not failed)
        return True

    def failed(self, request_id: Any) -> None:
        """End a call that will get no answer, because the server refused it or is gone."""
        with self._lock:
            self._end(request_id, ok=False)

    def overdue(self) -> list[Overdue]:
        """End and return the calls that have just taken too long; a late answer is not passed on."""
        if not self._timeout_s:
            return []
        latest_s = self._now_s() - self._timeout_s
        with self._lock:
            late = {key: call for key, call in self._open.items() if call.began_s <= latest_s}
            for call in late.values():
                self._end(call.request_id, ok=False)
            self._given_up.update(late)
        found = []
        for call in late.values():
            text = f"{call.name} took longer than {self._timeout_s:g} s and was given up"
            answer = {"id": call.request_id, "error": {"code": _REQUEST_TIMEOUT, "message": text}}
            told = {"method": "notifications/cancelled", "params": {"requestId": call.request_id, "reason": text}}
            found.append(Overdue(_line(answer), _line(told)))
        return found

    def end_if_idle(self) -> None:
        """End the program if nothing runs, since the client will ask for nothing more."""
        if not self._open:
            self.end()

    def end(self) -> None:
        """End all calls and the program, since the connection is closed."""
        with self._lock:
            for call in list(self._open.values()):
                self._end(call.request_id, ok=False)
        if self._begun and self._ends:
            self._begun = False
            self._to.program_ended(self._own, "the MCP connection closed")

    def _begin(self, request_id: Any, parameters: dict[str, Any]) -> None:
        meta = parameters.get("_meta")
        program, name = (
            self._program_of(meta if isinstance(meta, dict) else {}),
            str(parameters.get("name") or "tool"),
        )
        key = _key(request_id)
        self._given_up.discard(key)
        self._open[key] = _Call(request_id, program, name, self._now_s())
        self._to.tool_started(program, key, name)

    def _end(self, request_id: Any, *, ok: bool) -> None:
        call = self._open.pop(_key(request_id), None)
        if call is not None:
            self._to.tool_ended(call.program_id, _key(request_id), ok=ok)

    def _program_of(self, meta: dict[str, Any]) -> str:
        for name in _META:
            if isinstance(told := meta.get(name), str) and told:
                return told
        if not self._begun:
            self._begun = True
            self._to.program_started(self._own)
        return self._own


def _key(request_id: Any) -> str:
    """A request's id as text, which tells 1 from "1"."""
    return json.dumps(request_id)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def _messages(data: bytes) -> list[dict[str, Any]]:
    """The JSON-RPC messages in a text: one, a batch, or none if the text is something else."""
    try:
        told = json.loads(data)
    except ValueError:
        return []
    return [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, dict)]
