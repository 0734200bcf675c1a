"""vLLM's tokens in, tokens out on the double, by which RL trainers ask for rollouts (SkyRL, prime-rl).

A token id is a word of the prompt. A prompt is known again in blocks, as in vLLM's cache.
"""

import json
from collections.abc import Mapping
from typing import Any

from controlplane.lab.double.chat_request import BadRequest, ChatMessage, ChatRequest, output_tokens
from controlplane.lab.double.replies import Usage, aborted

_BLOCK = 16
_FIRST_ID = 16  # those below may be the tokenizer's own, as a reply's end
_IDS = 1000


def parse_tokens(body: Mapping[str, Any]) -> ChatRequest:
    """Check a request body. Raises ``BadRequest``."""
    ids, sampling = body.get("token_ids"), body.get("sampling_params")
    if not isinstance(ids, list) or not ids or not all(type(each) is int and each >= 0 for each in ids):
        raise BadRequest("token_ids: expected a list of token ids")
    if not isinstance(sampling, dict):
        raise BadRequest("sampling_params: expected an object")
    blocks = (ids[at : at + _BLOCK] for at in range(0, len(ids), _BLOCK))
    return ChatRequest(
        messages=tuple(ChatMessage(role="user", text=" ".join(map(str, block))) for block in blocks),
        output_tokens=output_tokens(sampling, ("max_tokens",)),
        stream=bool(body.get("stream", False)),
        include_usage=True,
    )


class TokensFormat:
    """Writes one reply's events, or its JSON: a token for each of its words, with a log probability of 0."""

    def __init__(self, body: Mapping[str, Any], *, turn_id: str, model: str, created_s: int) -> None:
        self._fixed = {"request_id": turn_id, "model": model, "created": created_s, "output_mode": "tokens"}
        self._with_logprobs = body["sampling_params"].get("logprobs") is not None

    def first_chunk(self) -> str:
        return ""

    def chunk(self, text: str) -> str:
        return self._event(self._choice(text, None))

    def last_chunks(self, finish_reason: str, usage: Usage | None) -> str:
        if finish_reason == "abort":
            return aborted()
        more = {"usage": usage.to_json()} if usage is not None else {}
        return self._event(self._choice("", finish_reason), **more) + "data: [DONE]\n\n"

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        choices = [self._choice(text, finish_reason)]
        return json.dumps({**self._fixed, "choices": choices, "usage": usage.to_json()}).encode()

    def _event(self, choice: Mapping[str, Any], **more: object) -> str:
        return f"data: {json.dumps({**self._fixed, 'choices': [choice], **more})}\n\n"

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        ids = [_FIRST_ID + sum(word.encode()) % _IDS for word in text.split()]
        logprobs = {"content": [{"token": f"token_id:{each}", "logprob": 0.0} for each in ids]}
        return {
            "index": 0,
            "token_ids": ids,
            "finish_reason": finish_reason,
            "logprobs": logprobs if self._with_logprobs else None,
        }
