"""Read request bodies, within bounds on their total size, their time and the number of values in them.

A large body is parsed part by part, on the loop that serves everybody. Millions of small values cost a thousand
times as much as a long text of the same size, here and in the engine. So the gate counts what is outside of strings
while the body arrives, and refuses a body with too much of it unparsed. A body that never ends is refused in time.
Until then its bytes count, and if there are too many in all, the largest body goes: its client is least likely an
agent.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.gate.asgi import ClientGone, Receive
from controlplane.gate.encodings import Decoder
from controlplane.gate.limits import GateLimits

_SMALL = 1 << 16  # bytes: a body up to this is parsed in milliseconds, whatever it is made of
_WINDOW = 1 << 16  # bytes looked at at once
_PARSED_WHOLE = 1 << 20  # bytes: a millisecond
_SPACES = 16  # characters that may stand before the first message
_decode = msgspec.json.Decoder().decode
_lenient = json.JSONDecoder(strict=False)
_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_UNREAD = (msgspec.MsgspecError, UnicodeDecodeError)
_VALUES_A_CONTAINER = 20  # an object or a list costs about as much as so many numbers


class BodyRefused(Exception):
    """The body is refused, with the HTTP ``status``, our ``code``, and the reason."""

    def __init__(self, status: HTTPStatus, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class Structure:
    """Counts, piece by piece, how much a JSON text has outside of its strings."""

    def __init__(self) -> None:
        self.values = 0
        self._in_string = False
        self._carried = b""

    def feed(self, data: bytes) -> None:
        for start in range(0, len(data), _WINDOW):
            self._look(self._carried + data[start : start + _WINDOW])

    def _look(self, piece: bytes) -> None:
        piece = piece.replace(b"\\\\", b"")
        self._carried = b"\\" if piece.endswith(b"\\") else b""  # what it escapes comes with the next piece
        between = piece[: len(piece) - len(self._carried)].replace(b'\\"', b"").split(b'"')
        outside = b"".join(between[self._in_string :: 2])
        self._in_string ^= len(between) % 2 == 0
        self.values += outside.count(b",") + _VALUES_A_CONTAINER * (outside.count(b"[") + outside.count(b"{"))


def with_fields(data: bytes, fields: Mapping[str, object]) -> bytes:
    """Set fields at the top of the JSON object that ``data`` is; of a name that it has the last counts, as with
    most parsers. All else stays as it came.
    """
    head = data.rstrip().removesuffix(b"}").rstrip()
    more = json.dumps(fields).encode()[1:]
    return head + (b"" if head.endswith(b"{") else b",") + more


def with_values(data: bytes, value: Mapping[str, object], names: Iterable[str]) -> bytes:
    """The JSON object ``data`` with those fields at its top as in ``value``; all else stays as it came."""
    try:
        return msgspec.json.encode(_split_object(data) | {name: value[name] for name in names})
    except (*_UNREAD, UnicodeEncodeError):  # as in ``_parsed``
        return json.dumps(value).encode()


async def json_object(data: bytes) -> dict[str, Any] | None:
    """Parse the JSON object that a body is; None if no server would find one in it.

    Of a large one each field, and each message, is parsed by itself, and others run meanwhile. Servers differ in
    what they take: Go's read one value and leave what follows, Rust's look into no field that they do not know. So
    of what is not JSON by the letter the object that it begins with counts, or a turn would pass by the gate.

    Raises ``BodyRefused`` for what is nested too deeply to be parsed here, or has a number of thousands of digits.
    """
    try:
        try:
            value = await _parsed_in_parts(data) if len(data) > _PARSED_WHOLE else _parsed(data)
        except (json.JSONDecodeError, UnicodeDecodeError):
            value = _first_value(data)
    except (ValueError, RecursionError):
        if not data.lstrip().startswith(b"{"):
            return None
        why = "the request body is nested too deeply, or holds a number of thousands of digits"
        raise BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_complex", why) from None
    return value if isinstance(value, dict) else None


def _first_value(data: bytes) -> Any:
    """The JSON object that the text begins with, whatever its strings hold; None for none."""
    text = data.decode(errors="replace").lstrip()
    try:
        return _lenient.raw_decode(text)[0] if text.startswith("{") else None
    except json.JSONDecodeError:
        return None


async def _parsed_in_parts(data: bytes) -> Any:
    try:
        fields = _split_object(data)
    except _UNREAD:
        return _parsed(data)
    value = {}
    for name, field in fields.items():
        await asyncio.sleep(0)
        if len(memoryview(field)) > _PARSED_WHOLE and _begins_with_object(field):
            value[name] = [_parsed(item) async for item in _items(field)]
        else:
            value[name] = _parsed(field)
    return value


def _begins_with_object(field: msgspec.Raw) -> bool:
    return bytes(memoryview(field)[:_SPACES]).replace(b" ", b"").startswith(b"[{")


async def _items(field: msgspec.Raw) -> AsyncIterator[msgspec.Raw]:
    size = 0
    for item in _split_list(field):
        yield item
        size += len(memoryview(item))
        if size > _WINDOW:
            size = 0
            await asyncio.sleep(0)


def _parsed(data: bytes | msgspec.Raw) -> Any:
    try:
        return _decode(data)
    except _UNREAD:  # NaN, or half of a surrogate pair, which clients write as they cut a text
        return json.loads(bytes(data))


class _Body:
    __slots__ = ("chunks", "decoder", "received", "shed", "size", "structure")

    def __init__(self, decoder: Decoder | None) -> None:
        self.decoder = decoder
        self.chunks: list[bytes] = []
        self.size = self.received = 0  # bytes; the latter as they came, where they were encoded
        self.structure: Structure | None = None
        self.shed = False

    def add(self, chunk: bytes, most_values: int) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)
        if self.size <= _SMALL:
            return
        if self.structure is None:
            self.structure = Structure()
            for earlier in self.chunks[:-1]:
                self.structure.feed(earlier)
        self.structure.feed(chunk)
        if self.structure.values > most_values:
            why = f"the request body holds more than {most_values:,} values, an object or a list counted as 20"
            raise BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_complex", why)


class Bodies:
    """Reads the bodies of one gate's requests."""

    def __init__(self, limits: GateLimits) -> None:
        self._limits = limits
        self._arriving: dict[_Body, None] = {}
        self.bytes_arriving = 0

    async def read(self, receive: Receive, encoding: str = "") -> bytes:
        """Read the whole body, its ``encoding`` undone. Raises ``BodyRefused``, or ``ClientGone`` if it left."""
        body = _Body(Decoder() if encoding else None)
        self._arriving[body] = None
        try:
            if await self._more(body, receive):
                await self._rest(body, receive)
            return body.chunks[0] if len(body.chunks) == 1 else b"".join(body.chunks)
        finally:
            self._let_go(body)

    async def _rest(self, body: _Body, receive: Receive) -> None:
        patience_s = self._limits.body_ns / NANOSECONDS_PER_SECOND / self._limits.time_scale
        try:
            async with asyncio.timeout(patience_s):
                while await self._more(body, receive):
                    pass
        except TimeoutError:
            why = f"the request body was not complete after {patience_s:g} s"
            raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", why) from None

    async def _more(self, body: _Body, receive: Receive) -> bool:
        """Take the next piece; True if there is another."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        more, chunk = bool(message.get("more_body", False)), message.get("body", b"")
        if body.decoder is None:
            self._add(body, chunk)
            return more
        body.received += len(chunk)
        if body.received > self._limits.max_body_bytes:
            raise self._too_large()
        try:
            for plain in body.decoder.pieces(chunk):
                self._add(body, plain)
                await asyncio.sleep(0)  # a small piece may hold a large one
            if not more:
                body.decoder.end()
        except ValueError as error:
            raise BodyRefused(HTTPStatus.BAD_REQUEST, "bad_encoding", f"the request body: {error}") from None
        return more

    def _add(self, body: _Body, chunk: bytes) -> None:
        if body.size + len(chunk) > self._limits.max_body_bytes:
            raise self._too_large()
        if not body.shed:
            self.bytes_arriving += len(chunk)  # first, since what is refused is let go with all its bytes
            body.add(chunk, self._limits.max_body_values)
            while self.bytes_arriving > self._limits.max_arriving_bytes:
                self._let_go(max(self._arriving, key=lambda each: each.size))
        if body.shed:
            why = f"more than {self._limits.max_arriving_bytes:,} bytes of request bodies arrive at once"
            raise BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_bodies", why)

    def _too_large(self) -> BodyRefused:
        why = f"the request body has more than {self._limits.max_body_bytes:,} bytes"
        return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", why)

    def _let_go(self, body: _Body) -> None:
        """Free a body's bytes at once, though its client hears of it only with its next piece."""
        if body not in self._arriving:
            return
        del self._arriving[body]
        self.bytes_arriving -= body.size
        body.shed = True
        body.chunks = []
