"""What a reply says of its own size: the ``usage`` of OpenAI's and Anthropic's APIs, SGLang's ``meta_info``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = ("usage", "meta_info")
WITHIN = ("message", "response")  # where Anthropic's first event, and the last of OpenAI's Responses, have it
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_CACHED = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens")
_CACHE_TOKENS = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic's input tokens are without


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens; ``cached_tokens`` is None where the engine does not tell, as most do not unless they are asked to."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


def sizes_in(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that one document of a reply has of its size; what a later one says goes before."""
    told: dict[str, Any] = {}
    for within in (part, *(part.get(name) for name in WITHIN)):
        for each in (within.get(name) for name in _NAMES) if isinstance(within, dict) else ():
            if isinstance(each, dict):
                told |= {name: value for name, value in each.items() if value is not None}
    return told


def usage_of(sizes: Mapping[str, Any]) -> Usage | None:
    """What all these fields say; None if they say nothing, or nothing that we can read."""
    prompt = _first(sizes, _PROMPT)
    if prompt is None:
        return None
    cached = _first(sizes, _CACHED)
    if (read := _number(sizes, "cache_read_input_tokens")) is not None:
        cached = read
        prompt += sum(_number(sizes, name) or 0 for name in _CACHE_TOKENS)
    return Usage(prompt_tokens=prompt, output_tokens=_first(sizes, _OUTPUT) or 0, cached_tokens=cached)


def _first(sizes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _number(sizes, name)) is not None), None)


def _number(sizes: Mapping[str, Any], path: str) -> int | None:
    value: Any = sizes
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if type(value) is int and value >= 0 else None
