"""Why a prompt's prefix was missed, in the API that asks: Anthropic's and OpenAI's cache diagnostics.

Anthropic's Messages take ``diagnostics.previous_message_id`` and answer with ``diagnostics``, in a stream within
``message_start``. OpenAI's Responses take ``prompt_cache_options.comparison_response_id`` and answer with
``prompt_cache_diagnostics``, in a stream within ``response.completed``. Both compare requests and say nothing of
whether the cache was hit. All else of a reply passes as it came.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from controlplane.core.model.causes import Cause
from controlplane.gate.asgi import Message, SendMessage
from controlplane.gate.bodies import with_fields
from controlplane.gate.encodings import CONTENT_ENCODING, CONTENT_LENGTH
from controlplane.gate.problems import ANTHROPIC_PATH

_RESPONSES_PATH = "/v1/responses"
_MOST_BYTES = 1 << 20  # of a reply, or an event, that is held back to be added to; a longer one passes as it is
_ANTHROPIC = {Cause.MODEL: "model_changed", Cause.SYSTEM: "system_changed", Cause.VOLATILE: "system_changed"}
_OPENAI = {Cause.MODEL: "model_changed", Cause.COMPACTED: "context_compacted"}
_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")  # between two events
_BLANK_BYTES = 4
_LOOK = 256  # bytes of an event in which its kind stands
_HOLDERS = {True: (b"message_start", "message"), False: (b"response.completed", "response")}
_TOOLS = (Cause.TOOLS, Cause.TOOLS_ADDED, Cause.TOOLS_REMOVED, Cause.TOOLS_REORDERED)
_ANTHROPIC |= dict.fromkeys(_TOOLS, "tools_changed")
_OPENAI |= dict.fromkeys(_TOOLS, "tools_changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """With an earlier prompt of so many tokens, about; ``kept_ratio`` of it stands before the first difference."""

    cause: Cause
    kept_ratio: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A client asks for a comparison with its reply ``previous``; None: it has none yet, but will ask again."""

    previous: str | None
    is_anthropic: bool

    @property
    def field(self) -> str:
        return "diagnostics" if self.is_anthropic else "prompt_cache_diagnostics"

    def answer(self, found: Compared | None) -> dict[str, Any] | None:
        """The value of ``field``. ``found`` is None where nothing is remembered of that reply's request."""
        if self.previous is None:
            return None
        if found is None:
            missing = "previous_message_not_found" if self.is_anthropic else "comparison_response_not_found"
            return {"cache_miss_reason": {"type": missing}} if self.is_anthropic else {"type": missing}
        if not found.cause:
            return None if self.is_anthropic else {"type": "cache_hit"}
        missed = round((1.0 - found.kept_ratio) * found.tokens)
        if self.is_anthropic:
            reason = _ANTHROPIC.get(found.cause, "messages_changed")
            return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}
        reason = _OPENAI.get(found.cause, "input_changed")
        sizes = {"cache_missed_tokens": missed, "comparison_reusable_tokens": found.tokens}
        return {"type": "cache_miss", "reason": reason, **sizes}


def question_in(path: str, body: Mapping[str, Any]) -> Question | None:
    """What the request asks; None: nothing."""
    anthropic = path == ANTHROPIC_PATH
    holder = body.get("diagnostics" if anthropic else "prompt_cache_options")
    if not isinstance(holder, dict) or not (anthropic or path == _RESPONSES_PATH):
        return None
    name = "previous_message_id" if anthropic else "comparison_response_id"
    previous = holder.get(name)
    if name not in holder or not (previous is None or isinstance(previous, str)):
        return None
    return Question(previous=previous, is_anthropic=anthropic) if anthropic or previous else None


class Answered:
    """A ``send`` that adds the answer to a good reply; ``answer`` is asked for once, when it is needed."""

    def __init__(self, send: SendMessage, question: Question, answer: Callable[[], dict[str, Any] | None]) -> None:
        self._send, self._question, self._answer = send, question, answer
        self._start: Message | None = None  # held back, as its length is not known yet
        self._held = bytearray()
        self._looked = 0  # bytes of it in which no event ends
        self._is_stream = self._passes = self._is_told = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] != "http.response.body" or self._passes:
            await self._send(message)
        else:
            self._held += message.get("body", b"")
            await (self._events if self._is_stream else self._whole)(message.get("more_body", False))

    async def _begin(self, message: Message) -> None:
        headers = {name.lower(): value.decode("latin-1").lower() for name, value in message.get("headers", ())}
        self._is_stream = "event-stream" in headers.get(b"content-type", "")
        plain = headers.get(CONTENT_ENCODING, "identity") == "identity"
        self._passes = message["status"] != HTTPStatus.OK or not plain
        if self._passes or self._is_stream:
            await self._send(message)
        else:
            self._start = message

    async def _whole(self, more: bool) -> None:
        """A reply that is one JSON object."""
        if more and len(self._held) <= _MOST_BYTES:
            return
        data, start = bytes(self._held), self._start or {}
        self._held.clear()
        self._passes = True
        if not more and data.rstrip().endswith(b"}"):
            data = with_fields(data, {self._question.field: self._answer()})
            headers = [each for each in start.get("headers", ()) if each[0].lower() != CONTENT_LENGTH]
            start["headers"] = [*headers, (CONTENT_LENGTH, str(len(data)).encode())]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _events(self, more: bool) -> None:
        """Pass on whole events; the one that holds the reply gets the answer, and what comes behind it passes."""
        out, begin = bytearray(), 0
        for end in [each.end() for each in _BLANK.finditer(self._held, max(0, self._looked - _BLANK_BYTES))]:
            out += self._told(bytes(self._held[begin:end]))
            begin = end
        del self._held[:begin]
        self._passes = self._is_told
        if self._passes or not more or len(self._held) > _MOST_BYTES:
            out += self._held
            self._held.clear()
        self._looked = len(self._held)
        if out or not more:
            await self._send({"type": "http.response.body", "body": bytes(out), "more_body": more})

    def _told(self, event: bytes) -> bytes:
        kind, within = _HOLDERS[self._question.is_anthropic]
        if self._is_told or kind not in event[:_LOOK]:
            return event
        lines = event.splitlines(keepends=True)
        for at, line in enumerate(lines):
            if line.startswith(b"data:"):
                try:
                    document = json.loads(line[5:])
                    document[within][self._question.field] = self._answer()
                except (ValueError, TypeError, KeyError):
                    return event
                lines[at] = b"data: " + json.dumps(document).encode() + line[len(line.rstrip(b"\r\n")) :]
                self._is_told = True
        return b"".join(lines)
