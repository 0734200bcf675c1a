"""What a turn's reply asks of its program, and how long it says it is, from the bytes that Envoy shows."""

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.core.model.events import CalledTool
from controlplane.gate.replies import ReplyReader, ReplyTape
from controlplane.gate.usage import Usage

OF_SHAPE = ("content-type", "content-encoding")
"""The headers of an answer that say how its body is to be read."""
_OFFERS = ("tools", "functions")


class WatchedReply:
    """The reply to one request.

    ``body`` is the request's, of which little is kept; None: what is called is not asked for.
    """

    def __init__(self, reader: ReplyReader, path: str, body: Mapping[str, Any] | None = None) -> None:
        self._reader, self._tape = reader, ReplyTape(path, body or {})
        self._offers = {name: bool(body.get(name)) for name in _OFFERS} if body is not None else None

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """It begins so; ``headers`` are those of ``OF_SHAPE``."""
        self._tape.begin(status, [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers])

    def add(self, data: bytes, *, is_last: bool) -> None:
        """Some bytes of it went by."""
        self._tape.add(data, is_last=is_last)

    def called(self, program_id: str) -> tuple[str, ...] | None:
        """The tools that it calls, in order; empty: it is finished; None: neither is proven."""
        return None if self._offers is None else self._reader.called(program_id, self._offers, self._tape)

    @property
    def calls(self) -> tuple[CalledTool, ...]:
        """Its calls that have an id."""
        return self._tape.calls

    @property
    def reply_id(self) -> str:
        """By which its client may name it later; empty where it has none."""
        return self._tape.reply_id

    @property
    def usage(self) -> Usage | None:
        """What it has said of its size so far; None if nothing."""
        return self._tape.usage
