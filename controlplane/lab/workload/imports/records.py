"""A file of JSON, record by record: its lines, the items of an array, or the one document that it is.

Which it is, its content says, not its name: gzip by its first two bytes, then an array by its bracket, and a
document by a first line that is not a whole value. A byte order mark is read over, and CRLF ends a line like LF.
No more than one record is in memory.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import ijson
import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.trace_lines import BadProgram

MOST_RECORD_BYTES = 256 << 20  # unzipped
_BOM, _GZIP = b"\xef\xbb\xbf", b"\x1f\x8b"
_LOOK_LINES = 10  # behind a first line that is cut: whether the file has lines at all
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Record:
    """One value, not decoded yet where it is bytes. ``place``: ``7`` for a line, ``item 7`` of an array."""

    place: str
    data: Any

    def fields(self) -> Fields:
        """Its fields. Raises ``BadProgram`` where it is no object."""
        return Fields(self.read(object))

    def read(self, kind: type[_Kind]) -> _Kind:
        """Decode it. Raises ``BadProgram``, which names the field."""
        if isinstance(self.data, BadProgram):
            raise self.data
        try:
            if isinstance(self.data, bytes):
                return msgspec.json.decode(self.data, type=kind)
            return msgspec.convert(self.data, kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            reason, _, at = str(error).partition(" - at `$.")
            raise BadProgram(f"{at.rstrip('`')}: {reason}" if at else reason) from error


def records(path: Path) -> Iterator[Record]:
    """The file's records; one that breaks off yields what it held and then says so.

    Raises ``ConfigError`` when it cannot be read, and for a record without end: a few megabytes of gzip may hold
    one that no memory does.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            file: BufferedReader = raw
            if raw.peek(2)[:2] == _GZIP:
                file = cast(BufferedReader, gzip.GzipFile(fileobj=raw))  # which peeks, too
            elif path.suffix == ".gz" and raw.peek(1):
                raise ConfigError(f"{path}: not a gzip file")
            if file.peek(3)[:3] == _BOM:
                file.read(3)
            of = _items if file.peek(1).lstrip()[:1] == b"[" else _lines
            for record in of(file, path):
                number += 1
                yield record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield Record(str(number + 1), BadProgram(f"the gzip file breaks off here: {error}"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror or error}") from error


def _lines(file: IO[bytes], path: Path) -> Iterator[Record]:
    number = 0
    while line := file.readline(MOST_RECORD_BYTES + 1):
        number += 1
        if len(line) > MOST_RECORD_BYTES:
            raise ConfigError(f"{path}:{number}: expected lines of at most {MOST_RECORD_BYTES} bytes")
        if number == 1 and line.lstrip()[:1] == b"{" and "truncated" in _problem(line):
            whole = line + file.read(MOST_RECORD_BYTES)
            if len(whole) > MOST_RECORD_BYTES:
                raise ConfigError(f"{path}: expected one document of at most {MOST_RECORD_BYTES} bytes, or lines")
            yield from _document(whole)
            return
        if line.strip():
            yield Record(str(number), _utf8(line))


def _document(whole: bytes) -> Iterator[Record]:
    """The one value that it is; its lines, where only the first one was cut."""
    problem = _problem(whole)
    lines = whole.split(b"\n")
    if not problem:
        yield Record("", whole)
    elif any(line.lstrip()[:1] == b"{" and not _problem(line) for line in lines[1 : _LOOK_LINES + 1]):
        yield from (Record(str(number), _utf8(line)) for number, line in enumerate(lines, 1) if line.strip())
    else:
        at = _AT_BYTE.search(problem)
        number = whole.count(b"\n", 0, int(at[1])) + 1 if at else len(lines)
        yield Record(str(number), BadProgram(problem))


def _problem(data: bytes) -> str:
    """Why it is no JSON; nothing if it is."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        return str(error)
    return ""


def _utf8(line: bytes) -> bytes | BadProgram:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return BadProgram(f"not UTF-8 text: {error.reason} at byte {error.start}")
    return line


class _Bounded:
    """Gives a parser that asks for ever at most ``MOST_RECORD_BYTES``, until it is told that an item ended."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path, self.left = file, path, MOST_RECORD_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ConfigError(f"{self._path}: expected items of at most {MOST_RECORD_BYTES} bytes")
        return data


def _items(file: IO[bytes], path: Path) -> Iterator[Record]:
    bounded, number = _Bounded(file, path), 0
    try:
        for number, item in enumerate(ijson.items(bounded, "item", use_float=True), 1):
            yield Record(f"item {number}", item)
            bounded.left = MOST_RECORD_BYTES
    except (ijson.JSONError, UnicodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        yield Record(f"item {number + 1}", BadProgram(f"JSON is malformed: {reason}"))
