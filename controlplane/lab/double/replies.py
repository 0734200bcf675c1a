"""The double's replies: meaningless words, and the JSON around them as an OpenAI-compatible server sends it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_TEXT = (
    "sluice weir gate race wheel water head flow basin canal lock pond tail drop bank spill "
    "drain crest apron sill chute vane shaft gear stone grain meal sack mill dam reed silt"
)
_WORDS = tuple(_TEXT.split())


def reply_text(serial: int, first: int, end: int) -> str:
    """Words ``first`` to ``end`` of reply number ``serial``: pieces of it join to the whole."""
    count = len(_WORDS)
    text = " ".join(_WORDS[(serial + index) % count] for index in range(first, end))
    return f" {text}" if first and text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The ``usage`` of a reply, in tokens."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    def to_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def responses_json(self) -> dict[str, object]:
        """In the words of OpenAI's Responses."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }


class ReplyFormat:
    """Writes one reply's JSON. ``created_s`` is the time of the wall, as the interface has it.

    ``calls``: of tools, with which the reply ends.
    """

    def __init__(self, *, turn_id: str, model: str, created_s: int, calls: Sequence[dict[str, Any]] = ()) -> None:
        self._calls = list(calls)
        self._fixed = {"id": f"chatcmpl-{turn_id}", "created": created_s, "model": model}
        head = json.dumps({**self._fixed, "object": "chat.completion.chunk"})[:-1]
        self._chunk_head = f'data: {head}, "choices": [{{"index": 0, "delta": '

    def first_chunk(self) -> str:
        return f'{self._chunk_head}{{"role": "assistant", "content": ""}}, "finish_reason": null}}]}}\n\n'

    def chunk(self, text: str) -> str:
        """``text`` must need no escaping: the replies' words do not."""
        return f'{self._chunk_head}{{"content": "{text}"}}, "finish_reason": null}}]}}\n\n'

    def last_chunks(self, finish_reason: str, usage: Usage | None) -> str:
        if finish_reason == "abort":
            return aborted()
        calls = [{"index": index, **call} for index, call in enumerate(self._calls)]
        delta = json.dumps({"tool_calls": calls} if calls else {})
        text = f'{self._chunk_head}{delta}, "finish_reason": "{finish_reason}"}}]}}\n\n'
        if usage is not None:
            content = {**self._fixed, "object": "chat.completion.chunk", "choices": [], "usage": usage.to_json()}
            text += f"data: {json.dumps(content)}\n\n"
        return text + "data: [DONE]\n\n"

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        message = {"role": "assistant", "content": text, "tool_calls": self._calls or None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        content = {**self._fixed, "object": "chat.completion", "choices": [choice], "usage": usage.to_json()}
        return json.dumps(content).encode()


def error_json(message: str, *, kind: str = "BadRequestError", code: int = 400) -> bytes:
    """An error as SGLang writes it."""
    content = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return json.dumps(content).encode()


def aborted() -> str:
    """The end of a stream that failed, as SGLang and vLLM tell of it."""
    error = error_json("Generation aborted", kind="InternalServerError", code=500).decode()
    return f'data: {{"error": {error}}}\n\ndata: [DONE]\n\n'
