"""Server-sent events of a streamed chat completion, parsed as they come off the socket.

What a chunk must be is left open: engines and gateways add fields, send null for what they lack, and name the parts
of a reply as they like. Whatever a model put out is a token: text, reasoning, a tool call, a refusal, audio.
"""

from typing import Any

import msgspec

from controlplane.lab.load.answers import message_of, positive

HOLD_HEADER = "x-penstock-hold-ms"  # of a gate's answers; of one that began while its turn was held, a comment
_NO_OUTPUT = frozenset({"role", "name", "id", "index", "type", "object"})  # fields of a delta that frame it
_FAILED = frozenset({"abort", "error"})  # SGLang's and vLLM's, OpenRouter's


class ReplyBroken(Exception):
    """The engine reported an error in mid-stream; the message is its own. ``wait_s`` 0: do not ask again."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ReplyStream:
    """One streamed reply: feed it bytes as they arrive, in pieces of any size.

    ``begun``: a first token of any kind has come. ``finish``: the engine's reason, once it said that the reply is
    whole. The token counts are None where the engine did not tell them. ``held_ms``: as a gate's comment says.
    """

    def __init__(self) -> None:
        self.begun = False
        self.finish = ""
        self.held_ms = 0.0
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._text: list[str] = []
        self._rest = b""
        self._event = b""

    @property
    def text(self) -> str:
        return "".join(self._text)

    def feed(self, data: bytes) -> None:
        """Raises ``ReplyBroken``, or ``msgspec.DecodeError`` for a chunk that is no chat completion's."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            name, _, value = line.strip().partition(b":")
            if name == b"event":
                self._event = value.strip()
            elif name == b"data" and (payload := value.strip()):
                self._take(payload)
            elif not line.strip():  # the end of an event
                self._event = b""
            elif not name:
                self._comment(value.decode(errors="replace"))

    def _comment(self, text: str) -> None:
        name, _, value = text.partition(":")
        if name.strip() == HOLD_HEADER:
            self.held_ms = positive(value)

    def _take(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.finish = self.finish or "done"
            return
        chunk = msgspec.json.decode(payload)
        if not isinstance(chunk, dict):
            raise ReplyBroken(message_of(chunk) or "a chunk is no object")
        error = chunk.get("error")
        if error or self._event == b"error" or chunk.get("object") == "error":
            wait_s = error.get("retry_after_s") if isinstance(error, dict) else None
            raise ReplyBroken(message_of(chunk) or "an error without a message", positive(str(wait_s)))
        if isinstance(usage := chunk.get("usage"), dict):
            self._count(usage)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {"content": choice.get("text")}
        if isinstance(delta, dict):
            self.begun = self.begun or any(value for name, value in delta.items() if name not in _NO_OUTPUT)
            if isinstance(content := delta.get("content"), str):
                self._text.append(content)
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            if finish in _FAILED:
                raise ReplyBroken(f"the engine ended the reply with finish_reason {finish!r}")
            self.finish = finish

    def _count(self, usage: dict[str, Any]) -> None:
        """The last one counts: some engines send a usage with every chunk."""
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(prompt := usage.get("prompt_tokens")) is int and prompt > 0:
            self.prompt_tokens = prompt
        if type(output := usage.get("completion_tokens")) is int:
            self.output_tokens = output
        if type(cached) is int:
            self.cached_tokens = cached
