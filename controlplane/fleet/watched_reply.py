"""What a turn's reply asks of its program, read from the bytes that Envoy shows as they go by."""

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.gate.replies import ReplyReader, ReplyTape

OF_SHAPE = ("content-type", "content-encoding")
"""The headers of an answer that say how its body is to be read."""
_OFFERS = ("tools", "functions")


class WatchedReply:
    """The reply to one request; ``body`` is the request's, of which little is kept."""

    def __init__(self, reader: ReplyReader, path: str, body: Mapping[str, Any]) -> None:
        self._reader, self._tape = reader, ReplyTape(path, body)
        self._offers = {name: bool(body.get(name)) for name in _OFFERS}

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """It begins so; ``headers`` are those of ``OF_SHAPE``."""
        self._tape.begin(status, [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers])

    def add(self, data: bytes, *, is_last: bool) -> None:
        """Some bytes of it went by."""
        self._tape.add(data, is_last=is_last)

    def called(self, program_id: str) -> tuple[str, ...] | None:
        """The tools that it calls, in order; empty: it is finished; None: neither is proven."""
        return self._reader.called(program_id, self._offers, self._tape)
