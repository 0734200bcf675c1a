"""JSON-RPC messages in a stream of bytes: where each ends, and what stands at its top.

Both take time linear in the bytes. A large value is skipped, not built.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

MOST_BYTES = 64 << 20  # of a message that is read; a longer one passes as it comes
LINES = re.compile(rb"\n")
EVENTS = re.compile(rb"\n\r?\n")  # begins with a letter that memchr can look for
_LONGEST_END = 3
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
_HEAD_BYTES = 4096
_HEAD = re.compile(rb'\A[^{]*\{[^{}\[\]]*?"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,[^{}\[\]]*?"(result|error)"\s*:')


class Piece(NamedTuple):
    """A message, or a part of one that is longer than ``MOST_BYTES``."""

    data: bytes
    first: bool
    last: bool

    @property
    def whole(self) -> bool:
        return self.first and self.last


class Splitter:
    """Cuts a stream into messages, each with its ``end``; None: the stream is one message."""

    def __init__(self, end: re.Pattern[bytes] | None, most_bytes: int = MOST_BYTES) -> None:
        self.inside = False  # a long message has begun to pass
        self._end = end
        self._most_bytes = most_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Piece]:
        """The messages and parts that the chunk completes."""
        pieces, begin = [], 0
        look_from = max(0, len(self._rest) - _LONGEST_END + 1)
        self._rest += chunk
        while self._end is not None and (found := self._end.search(self._rest, look_from)):
            with memoryview(self._rest) as view:
                pieces.append(Piece(bytes(view[begin : found.end()]), not self.inside, True))
            self.inside, begin = False, found.end()
            look_from = begin
        del self._rest[:begin]
        if len(self._rest) > self._most_bytes:
            with memoryview(self._rest) as view:
                pieces.append(Piece(bytes(view[: -_LONGEST_END + 1]), not self.inside, False))
            self.inside = True
            del self._rest[: -_LONGEST_END + 1]
        return pieces

    def rest(self) -> bytes:
        """What is left without an end when the stream is over."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def messages(data: bytes) -> tuple[list[bytes | Raw], bool]:
    """The texts of the messages in ``data``, and whether it is a batch."""
    if data.lstrip()[:1] != b"[":
        return [data], False
    try:
        return list(_ARRAY.decode(data)), True
    except (ValueError, RecursionError):
        found = _lenient(data)
        return [_text(one) for one in found] if isinstance(found, list) else [], True


def members(data: bytes | Raw) -> dict[str, Raw]:
    """The members of a JSON object, each as its own text; none if ``data`` is something else."""
    try:
        return _OBJECT.decode(data)
    except (ValueError, RecursionError):  # such as NaN or half of a surrogate pair, which Python's own JSON takes
        found = _lenient(data)
        return {name: Raw(_text(value)) for name, value in found.items()} if isinstance(found, dict) else {}


def value(text: Raw | None) -> object:
    """A member's value; None if it is missing."""
    return None if text is None else _lenient(text)


def with_member(data: bytes | Raw, name: str, new: object) -> bytes:
    """The object with another value of one member, the others as they are."""
    return msgspec.json.encode({**members(data), name: Raw(_text(new))})


def batch(texts: list[bytes | Raw]) -> bytes:
    """The messages as a batch."""
    return b"[" + b",".join(map(bytes, texts)) + b"]"


class Head(NamedTuple):
    """The id in the beginning of an answer, where it stands, and whether the answer is an error."""

    id: object
    place: slice
    failed: bool


def head_of(data: bytes) -> Head | None:
    """Read the beginning of a message; None if it is no answer, or has its id behind its result."""
    found = _HEAD.match(data[:_HEAD_BYTES])
    if found is None or b'"method"' in found[0]:
        return None
    return Head(_lenient(found[1]), slice(*found.span(1)), found[2] == b"error")


def event_data(event: bytes) -> bytes:
    """The data of a server-sent event."""
    return b"\n".join(_field(event, b"data:"))


def event_id(event: bytes) -> bytes:
    """The id of a server-sent event; empty if it has none."""
    return next(_field(event, b"id:"), b"")


def event_with(data: bytes, event: bytes = b"event: message\n\n") -> bytes:
    """The event with other data."""
    others = [line for line in event.splitlines() if line and not line.startswith(b"data:")]
    return b"\n".join([*others, *(b"data: " + line for line in data.splitlines()), b"", b""])


def _field(event: bytes, name: bytes) -> Iterator[bytes]:
    for line in event.split(b"\n"):
        if line.startswith(name):
            yield line[len(name) + line.startswith(name + b" ") :].rstrip(b"\r")


def _lenient(text: bytes | Raw) -> object:
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        return None


def _text(found: object) -> bytes:
    return json.dumps(found).encode()
