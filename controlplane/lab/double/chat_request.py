"""A chat completion request, checked, and refused in SGLang's words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.errors import ControlPlaneError

_DEFAULT_OUTPUT_TOKENS = 16
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))


class BadRequest(ControlPlaneError):
    """The request is wrong, and how; answered with 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message as the double sees it: ``text`` is all that counts as tokens."""

    role: str
    text: str

    @property
    def key(self) -> int:
        """Equal for equal messages within this process."""
        return hash((self.role, self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What of the request the double acts on."""

    messages: tuple[ChatMessage, ...]
    output_tokens: int
    stream: bool
    include_usage: bool
    calls: tuple[dict[str, Any], ...] = ()  # of tools, that the reply is to make; as its JSON has them
    stops: str = "length"  # why the reply ends


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check a request body. Raises ``BadRequest``."""
    messages = body.get("messages")
    if messages is None:
        raise BadRequest("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]")
    if not isinstance(messages, list):
        raise BadRequest(f"messages: expected a list, got {type(messages).__name__}")
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    if body.get("n", 1) not in (1, None):
        raise BadRequest("n: the engine double gives one choice")
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise BadRequest("stream_options: expected an object")
    return ChatRequest(
        messages=tuple(_message(message, index) for index, message in enumerate(messages)),
        output_tokens=output_tokens(body, ("max_completion_tokens", "max_tokens")),
        stream=bool(body.get("stream", False)),
        include_usage=bool(stream_options.get("include_usage", False)),
    )


def output_tokens(body: Mapping[str, Any], names: Sequence[str]) -> int:
    """The most that the reply may have, by the first of these fields that is there. Raises ``BadRequest``."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"{name}: expected an integer, got {value!r:.80}")
        if value < 1:
            raise BadRequest(f"{name} must be at least 1, got {value}.")
        return value
    return _DEFAULT_OUTPUT_TOKENS


def _message(message: object, index: int) -> ChatMessage:
    if not isinstance(message, dict):
        raise BadRequest(f"messages[{index}]: expected an object, got {type(message).__name__}")
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequest(f"messages[{index}].role: expected one of {', '.join(sorted(_ROLES))}, got {role!r:.80}")
    text = with_calls(_text(message.get("content"), index), message.get("tool_calls"))
    return ChatMessage(role=role, text=text)


def with_calls(text: str, calls: object) -> str:
    """A message's text with its tool calls, which clients send back with their keys in another order."""
    return f"{text} {json.dumps(calls, sort_keys=True)}" if calls else text


def _text(content: object, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"messages[{index}].content: expected a string or a list, got {type(content).__name__}")
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return " ".join(part for part in parts if isinstance(part, str))
