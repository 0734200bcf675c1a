"""Request bodies that come compressed: undone piece by piece, within the bounds of plain ones.

An engine's server undoes no compression, so a gate that let such a body pass could neither size nor answer it. What
the standard library undoes is handed on plain; the rest is refused with what may come instead.
"""

import zlib
from collections.abc import Iterable, Iterator
from http import HTTPStatus

CONTENT_ENCODING, CONTENT_LENGTH = b"content-encoding", b"content-length"
_ACCEPTED = "gzip, deflate"
_PIECE = 1 << 18  # bytes that are undone at once: under a millisecond
_MOST_MEMBERS = 256  # of a gzip body: a few bytes are one, of which nothing comes out


class UnknownEncoding(Exception):
    """A body is compressed in a way that is not undone here; the message says so, to its client."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_encoding"

    def __init__(self, encoding: str) -> None:
        what = f"content-encoding {encoding[:40]!r} is not read here"
        super().__init__(f"{what}: send the body plain, or as {_ACCEPTED}")


def encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """How the body is encoded; empty: not at all. Raises ``UnknownEncoding``."""
    texts = [value.decode("latin-1") for name, value in headers if name.lower() == CONTENT_ENCODING]
    codings = [each for text in texts for word in text.split(",") if (each := word.strip().lower()) != "identity"]
    found = [each for each in codings if each]
    if len(found) > 1 or (found and found[0] not in ("gzip", "x-gzip", "deflate")):
        raise UnknownEncoding(", ".join(found))
    return found[0] if found else ""


class Decoder:
    """Undoes one body. Raises ``ValueError`` for what is not so encoded, or ends too soon."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=47)  # gzip, or zlib, which is what deflate means
        self._has_begun = False
        self._members = 1

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What comes out of the next piece, a bounded part at a time."""
        self._has_begun = self._has_begun or bool(data)
        while data:
            try:
                plain = self._inflate.decompress(data, _PIECE)
            except zlib.error as error:
                raise ValueError(str(error)) from None
            if plain:
                yield plain
            data = self._inflate.unconsumed_tail
            if self._inflate.eof:  # gzip may have members; what follows them is no part of a body
                data = self._inflate.unused_data
                if not data.startswith(b"\x1f\x8b"):
                    return
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise ValueError(f"it has more than {_MOST_MEMBERS} gzip members")
                self._inflate = zlib.decompressobj(wbits=47)

    def end(self) -> None:
        """The body is complete."""
        if self._has_begun and not self._inflate.eof:
            raise ValueError("it is cut short")
