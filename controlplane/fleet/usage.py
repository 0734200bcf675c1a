"""What an answer says of its own size, read from its last bytes as they go by: the ``usage`` of OpenAI's and
Anthropic's interfaces, and SGLang's ``meta_info``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HEAD_BYTES = 4096  # Anthropic's streams tell the prompt's tokens at once,
_TAIL_BYTES = 8192  # and everybody the rest at the end
_NAMED = re.compile(r'"(?:usage|meta_info)"\s*:\s*(?=\{)')
_DONE = (b"data: [DONE]", b"event: message_stop")
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_CACHED = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens")
_CACHE_TOKENS = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic's input tokens are without
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens; ``cached_tokens`` is None where the engine does not tell, as most do not unless they are asked to."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


class AnswerEnds:
    """The first and the last bytes of one answer."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def add(self, data: bytes) -> None:
        """Some bytes went by."""
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    @property
    def is_over(self) -> bool:
        """Whether a stream has said that this was all of it."""
        return any(mark in self._tail for mark in _DONE)

    def usage(self) -> Usage | None:
        """What the answer says; None if it says nothing, or nothing that we can read."""
        fields: dict[str, Any] = {}
        for part in (self._head, self._tail):
            text = part.decode("utf-8", "replace")
            for found in _NAMED.finditer(text):
                try:
                    value, _ = _DECODER.raw_decode(text, found.end())
                except (ValueError, RecursionError):
                    continue
                fields.update({name: each for name, each in value.items() if each is not None})
        prompt = _first(fields, _PROMPT)
        if prompt is None:
            return None
        cached = _first(fields, _CACHED)
        if (read := _number(fields, "cache_read_input_tokens")) is not None:
            cached = read
            prompt += sum(_number(fields, name) or 0 for name in _CACHE_TOKENS)
        return Usage(prompt_tokens=prompt, output_tokens=_first(fields, _OUTPUT) or 0, cached_tokens=cached)


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _number(fields, name)) is not None), None)


def _number(fields: Mapping[str, Any], path: str) -> int | None:
    value: Any = fields
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if type(value) is int and value >= 0 else None
