"""Estimate a prompt's size from its request."""

from collections.abc import Mapping
from typing import Any

_PROMPT_FIELDS = (
    "messages",
    "system",
    "prompt",
    "text",
    "input",
    "instructions",
    "tools",
    "input_ids",
    "instances",
)


def prompt_size(body: Mapping[str, Any]) -> tuple[int, int]:
    """A request's bytes of text (its messages, prompt and tools, in UTF-8) and its tokens.

    Tokens are 0 unless the prompt comes as token ids. Keys, numbers and encoded content (images as ``data:`` URLs
    or base64 sources) do not count.
    """
    text_bytes = tokens = 0
    pending: list[object] = [body.get(name) for name in _PROMPT_FIELDS]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if not value.startswith("data:"):
                text_bytes += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, dict):
            if value.get("type") != "base64":
                pending.extend(value.values())
        elif isinstance(value, list):
            if value and type(value[0]) is int:
                tokens += len(value)
            else:
                pending.extend(value)
    return text_bytes, tokens
