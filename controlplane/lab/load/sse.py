"""Server-sent events of a streamed chat completion, parsed as they come off the socket."""

from typing import Any

import msgspec

from controlplane.lab.load.answers import message_of


class Delta(msgspec.Struct):
    """What one chunk adds to the reply."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class Choice(msgspec.Struct):
    """One of a chunk's choices; we ask for one."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = 0


class Usage(msgspec.Struct):
    """The final chunk's token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class Chunk(msgspec.Struct):
    """One ``data:`` line. ``error`` is what an engine sends when it fails in mid-stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str = ""
    message: str = ""


_DECODER = msgspec.json.Decoder(Chunk)


class ReplyBroken(Exception):
    """The engine reported an error in mid-stream; the message is its own."""


class ReplyStream:
    """One streamed reply: feed it bytes as they arrive, in pieces of any size."""

    def __init__(self) -> None:
        self.begun = False  # a first token has come
        self.ended = False  # the engine said that the reply is whole
        self.usage = Usage()
        self._text: list[str] = []
        self._rest = b""

    @property
    def text(self) -> str:
        return "".join(self._text)

    def feed(self, data: bytes) -> None:
        """Raises ``ReplyBroken``, or ``msgspec.DecodeError`` for a chunk that is no chat completion's."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.ended = True
            elif payload:
                self._take(_DECODER.decode(payload))

    def _take(self, chunk: Chunk) -> None:
        if chunk.error is not None or chunk.object == "error":
            raise ReplyBroken(message_of(chunk.error) or chunk.message)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            delta = choice.delta
            self.ended = self.ended or choice.finish_reason is not None
            self.begun = self.begun or bool(delta.content or delta.reasoning_content or delta.tool_calls)
            if delta.content:
                self._text.append(delta.content)
