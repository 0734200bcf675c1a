"""Find out which tools a reply calls, from its body in the form of its API.

**Paper**: Continuum §5.1: its handler looks at each finished reply for a tool call. Only names leave this file.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.core.tool_calls import called_name, tools_called
from controlplane.gate.problems import ANTHROPIC_PATH

_MOST_BYTES = 1 << 20
_MOST_PROGRAMS = 65_536
_SSE_DATA = b"data:"


class ReplyReader:
    """Reads the replies of one server. ``names`` returns None if the calls cannot be known.

    A reply without a call means that a program rests only if calls would have been found: its request offered
    tools, or an earlier reply of the program had a call in its text. Agents of unknown form are left alone.
    """

    def __init__(self) -> None:
        self._calls_in_text: OrderedDict[str, None] = OrderedDict()

    def names(
        self, program_id: str, request: Mapping[str, Any], path: str, content_type: str, data: bytes
    ) -> tuple[str, ...] | None:
        """The tools that a complete reply calls, in order."""
        try:
            parts = list(_streamed(data) if content_type.startswith("text/event-stream") else _whole(data))
            called, text = _read(path, parts)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            return None
        if called:
            return tuple(called)
        if names := tools_called(text):
            self._remember(program_id)
            return names
        return () if request.get("tools") or program_id in self._calls_in_text else None

    def _remember(self, program_id: str) -> None:
        self._calls_in_text[program_id] = None
        self._calls_in_text.move_to_end(program_id)
        if len(self._calls_in_text) > _MOST_PROGRAMS:
            self._calls_in_text.popitem(last=False)


class ReplyTape:
    """Keeps the body of one reply as it passes by, unless it is too long."""

    def __init__(self) -> None:
        self.content_type = ""
        self._chunks: list[bytes] | None = None
        self._size = 0

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the reply's first message, with its status and headers."""
        types = [value.decode("latin-1") for name, value in headers if name.lower() == b"content-type"]
        self.content_type = types[0] if types else ""
        self._chunks = [] if 200 <= status < 300 else None

    def add(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._chunks is None:
            return
        self._size += len(body)
        if self._size > _MOST_BYTES:
            self._chunks = None
        else:
            self._chunks.append(body)

    @property
    def data(self) -> bytes | None:
        """The whole body; None if it is an error's or too long."""
        return None if self._chunks is None else b"".join(self._chunks)


def _whole(data: bytes) -> Iterator[Any]:
    yield json.loads(data)


def _streamed(data: bytes) -> Iterator[Any]:
    """The parsed JSON of each server-sent event."""
    for line in data.splitlines():
        if line.startswith(_SSE_DATA):
            said = line[len(_SSE_DATA) :].strip()
            if said.startswith(b"{"):
                yield json.loads(said)


def _read(path: str, parts: list[Any]) -> tuple[list[str], str]:
    """Read the names in the API's fields, and the text."""
    if path == ANTHROPIC_PATH:
        return _messages(parts)
    if path == "/v1/responses":
        return _responses(parts)
    if path == "/generate":
        last = parts[-1]
        return [], str((last[0] if isinstance(last, list) else last).get("text") or "")
    return _completions(parts)


def _completions(parts: list[Any]) -> tuple[list[str], str]:
    """Read OpenAI's chat completions and completions, of which only the first choice counts."""
    calls: dict[int, list[str]] = {}  # (name, arguments): in a stream only a call's first part has the name
    texts: list[str] = []
    for part in parts:
        for choice in part.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            message = choice.get("message") or choice.get("delta") or {}
            for number, call in enumerate(message.get("tool_calls") or ()):
                _add(calls, call.get("index", number), call.get("function") or {})
            _add(calls, -1, message.get("function_call") or {})
            texts.append(message.get("content") or choice.get("text") or "")
    return [called_name(name, given) for name, given in calls.values() if name], "".join(texts)


def _add(calls: dict[int, list[str]], index: int, function: Mapping[str, Any]) -> None:
    if function.get("name") or index in calls:
        name, given = calls.get(index, ("", ""))
        arguments = function.get("arguments")
        calls[index] = [name or function["name"], given + (arguments if isinstance(arguments, str) else "")]


def _messages(parts: list[Any]) -> tuple[list[str], str]:
    """Read Anthropic's messages; a stream has a call's arguments piece by piece after its name."""
    calls: list[tuple[str, Any]] = []
    texts: list[str] = []
    for part in parts:
        blocks = list(part.get("content") or ())
        blocks += [block for name in ("content_block", "delta") if (block := part.get(name))]
        for block in blocks:
            texts.append(block.get("text") or "")
            if block.get("type") == "tool_use":
                calls.append((block["name"], block.get("input") or ""))
            elif block.get("type") == "input_json_delta" and calls and isinstance(calls[-1][1], str):
                calls[-1] = (calls[-1][0], calls[-1][1] + block["partial_json"])
    return [called_name(name, given) for name, given in calls], "".join(texts)


def _responses(parts: list[Any]) -> tuple[list[str], str]:
    """Read OpenAI's Responses; a stream's last event repeats the whole."""
    last = parts[-1]
    items = (last.get("response") or last).get("output") or ()
    calls = [item for item in items if item.get("type") == "function_call"]
    contents = (content for item in items for content in item.get("content") or ())
    names = [called_name(call["name"], call.get("arguments")) for call in calls]
    return names, "".join(content.get("text") or "" for content in contents)
