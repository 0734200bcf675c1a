"""Read request bodies, within bounds on their total size, their time and the number of values in them.

One uninterruptible call parses a body, on the loop that serves everybody, and millions of small values cost it a
thousand times as much as a long text of the same size. So the gate counts what is outside of strings while the body
arrives, and refuses a body with too much of it unparsed. A body that never ends is refused in time. Until then its
bytes count, and if there are too many in all, the largest body goes: its client is least likely an agent.
"""

import asyncio
from http import HTTPStatus

from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.gate.asgi import ClientGone, Receive
from controlplane.gate.encodings import Decoder
from controlplane.gate.limits import GateLimits

_SMALL = 1 << 16  # bytes: a body up to this is parsed in milliseconds, whatever it is made of
_WINDOW = 1 << 16  # bytes looked at at once
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
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """Count the next piece."""
        for start in range(0, len(data), _WINDOW):
            self._look(self._kept + data[start : start + _WINDOW])

    def _look(self, piece: bytes) -> None:
        piece = piece.replace(b"\\\\", b"")
        self._kept = b"\\" if piece.endswith(b"\\") else b""  # what it escapes comes with the next piece
        between = piece[: len(piece) - len(self._kept)].replace(b'\\"', b"").split(b'"')
        outside = b"".join(between[self._in_string :: 2])
        self._in_string ^= len(between) % 2 == 0
        self.values += outside.count(b",") + _VALUES_A_CONTAINER * (outside.count(b"[") + outside.count(b"{"))


class _Body:
    """One body that is arriving."""

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
