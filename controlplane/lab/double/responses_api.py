"""OpenAI's Responses on the double: requests as Codex writes them, and replies of items on which it acts.

After a user's message a reply calls the first tool that was offered, the next one the second, and so on; when all
were called, the double answers. What it has a client run does nothing. Reasoning goes out in clear, or packed where
the request includes ``reasoning.encrypted_content``: what was packed is words again when it comes back.
"""

import base64
import binascii
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.lab.double.chat_request import BadRequest, ChatMessage, ChatRequest, output_tokens
from controlplane.lab.double.replies import Usage

_PACKED = "reasoning.encrypted_content"
_CALLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "function": lambda name: {"type": "function_call", "name": name, "arguments": '{"cmd": "true"}'},
    "custom": lambda name: {
        "type": "custom_tool_call",
        "name": name,
        "input": "*** Begin Patch\n*** End Patch",
        "status": "completed",
    },
    "local_shell": lambda _: {
        "type": "local_shell_call",
        "action": {"type": "exec", "command": ["true"], "env": {}},
        "status": "completed",
    },
}
"""By a tool's type: the item that calls it."""
_INPUT_FIELDS = ("content", "output", "arguments", "input", "action")  # of an item, that have what is rendered


def parse_responses(body: Mapping[str, Any]) -> ChatRequest:
    """Check a request body. Raises ``BadRequest``."""
    raw = body.get("input")
    items = [{"role": "user", "content": raw}] if isinstance(raw, str) else raw
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise BadRequest("input: expected a text or a list of items")
    instructions = body.get("instructions")
    system = [ChatMessage(role="system", text=instructions)] if isinstance(instructions, str) else []
    return ChatRequest(
        messages=(*system, *(_message(item) for item in items)),
        output_tokens=output_tokens(body, ("max_output_tokens",)),
        stream=bool(body.get("stream", False)),
        include_usage=True,
    )


def _message(item: Mapping[str, Any]) -> ChatMessage:
    role = item.get("role")
    if item.get("type") == "reasoning" and isinstance(packed := item.get("encrypted_content"), str):
        return ChatMessage(role="assistant", text=_unpacked(packed))
    texts = [_text(item[name]) for name in _INPUT_FIELDS if item.get(name)]
    ours = "tool" if str(item.get("type")).endswith("_output") else "assistant"
    return ChatMessage(role=role if isinstance(role, str) else ours, text=" ".join(texts))


def _text(value: object) -> str:
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        return " ".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else json.dumps(value)


def _unpacked(packed: str) -> str:
    try:
        return base64.b64decode(packed).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadRequest("input: the encrypted content could not be verified") from error


def _next_call(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The call that the reply ends with; None where it is the answer."""
    if body.get("tool_choice") == "none":
        return None
    items, tools = (value if isinstance(value := body.get(name), list) else [] for name in ("input", "tools"))
    since = itertools.takewhile(lambda item: item.get("role") != "user", reversed(items))
    called = sum(str(item.get("type")).endswith("_call") for item in since)
    known = (tool for tool in tools if isinstance(tool, dict) and str(tool.get("type")) in _CALLS)
    tool = next(itertools.islice(known, called, None), None)
    return _CALLS[tool["type"]](str(tool.get("name"))) if tool is not None else None


class ResponsesFormat:
    """Writes one reply's events, or its JSON. ``created_s`` is the time of the wall."""

    def __init__(self, body: Mapping[str, Any], *, turn_id: str, model: str, created_s: int) -> None:
        self._fixed = {"id": f"resp_{turn_id}", "object": "response", "created_at": created_s, "model": model}
        self._turn_id = turn_id
        self._call = _next_call(body)
        self._item_id = f"rs_{turn_id}" if self._call else f"msg_{turn_id}"
        include = body.get("include")
        self._packs = isinstance(include, list) and _PACKED in include
        self._text = ""
        self._serials = itertools.count()

    def first_chunk(self) -> str:
        whole = {**self._fixed, "status": "in_progress", "output": []}
        item = {**self._spoken("", is_packed=False), "status": "in_progress"}
        created = self._event("created", response=whole) + self._event("in_progress", response=whole)
        return created + self._event("output_item.added", output_index=0, item=item)

    def chunk(self, text: str) -> str:
        self._text += text
        kind = "reasoning_text" if self._call else "output_text"
        return self._event(f"{kind}.delta", item_id=self._item_id, output_index=0, content_index=0, delta=text)

    def last_chunks(self, finish_reason: str, usage: Usage | None) -> str:
        whole = self._whole(self._text, finish_reason, usage)
        done = ""
        for index, item in enumerate(whole["output"]):
            if index:
                done += self._event("output_item.added", output_index=index, item=item)
            done += self._event("output_item.done", output_index=index, item=item)
        return done + self._event(whole["status"], response=whole)

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        return json.dumps(self._whole(text, finish_reason, usage)).encode()

    def _event(self, kind: str, **more: object) -> str:
        event = {"type": f"response.{kind}", "sequence_number": next(self._serials), **more}
        return f"event: response.{kind}\ndata: {json.dumps(event)}\n\n"

    def _whole(self, text: str, finish_reason: str, usage: Usage | None) -> dict[str, Any]:
        is_cut = finish_reason == "abort"
        return {
            **self._fixed,
            "status": "failed" if is_cut else "completed",
            "error": {"code": "server_error", "message": "Generation aborted"} if is_cut else None,
            "output": [] if is_cut else self._items(text),
            "usage": usage.responses_json() if usage is not None else None,
        }

    def _items(self, text: str) -> list[dict[str, Any]]:
        spoken = self._spoken(text, is_packed=self._packs)
        call_id = f"call_{self._turn_id}"
        return [spoken, {"id": call_id, "call_id": call_id, **self._call}] if self._call else [spoken]

    def _spoken(self, text: str, *, is_packed: bool) -> dict[str, Any]:
        """What the words are: reasoning before a call, or the answer."""
        if self._call is None:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return {
                "id": self._item_id,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        packed = {"encrypted_content": base64.b64encode(text.encode()).decode()}
        clear = {"content": [{"type": "reasoning_text", "text": text}]}
        return {"id": self._item_id, "type": "reasoning", "summary": [], **(packed if is_packed else clear)}
