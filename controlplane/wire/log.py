"""The event log: what a controller was told and what it answered, as lines of JSON that a person can read.

Replaying the events and ticks of a log through a controller of the same configuration gives the same commands.
A name that ends in ``.gz`` is compressed.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol, cast, get_origin, get_type_hints

import msgspec

from controlplane.core.model.commands import COMMAND_TYPES, Command
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import EVENT_TYPES, Event
from controlplane.wire.files import bounded_lines
from controlplane.wire.names import snake_case

FORMAT = "penstock-event-log"
VERSION = 1
_MOST_HEADER_BYTES = 1 << 22
_MOST_LINE_BYTES = 1 << 30  # a recorded run begins with a whole state


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line. ``created`` is a date and time for people (ISO 8601), ``config`` the configuration's text."""

    node: str
    preset: str
    created: str = ""
    config: str = ""
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event, received at ``now_ns`` on the reader's clock."""

    now_ns: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """A decision was made at ``now_ns``; the commands that it gave follow."""

    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """A command that the tick before it gave."""

    now_ns: int
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A new configuration took effect."""

    now_ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """The controller's state before what follows (a snapshot's text): the run did not begin from nothing."""

    now_ns: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The last line was cut, as by a crash: ``message`` says where. Nothing follows; all before it is good."""

    message: str


Record = Header | EventRecord | TickRecord | CommandRecord | ConfigRecord | StateRecord | Truncated


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One line on disk after the header."""

    record: Literal["event", "tick", "command", "config", "state"]
    now_ns: int
    kind: str = ""
    body: msgspec.Raw = msgspec.Raw()
    text: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_header = msgspec.json.Decoder(Header).decode
_event_decoders = {snake_case(kind): msgspec.json.Decoder(kind) for kind in EVENT_TYPES}
_command_decoders = {snake_case(kind): msgspec.json.Decoder(kind) for kind in COMMAND_TYPES}
_LISTS = {  # by kind: JSON has no tuples; core's records do
    kind: tuple(name for name, hint in get_type_hints(kind).items() if get_origin(hint) is Sequence)
    for kind in EVENT_TYPES
}
_kind_names: dict[type, str] = {kind: snake_case(kind) for kind in (*EVENT_TYPES, *COMMAND_TYPES)}


class LogFile(Protocol):
    """What is written to: a file, or who has it written. Methods raise ``OSError``."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class LogWriter:
    """Writes a log; an old file of this name is replaced. Use it as a context manager, or ``close`` it.

    A crash loses what was written since the last ``flush``, and may leave a last line that is cut. When it cannot
    be written any more (a full disk), ``failed`` says why and nothing more is: a record with a hole would replay to
    something else.

    :param file: where it is written in place of ``path``, which it becomes some day.
    :raises ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, file: "LogFile | None" = None) -> None:
        self.path = path
        self.failed = ""
        self._encode = msgspec.json.Encoder().encode
        try:
            self._file: LogFile = file or create(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the event log: {error}") from error
        self._write(header)

    def event(self, event: Event, now_ns: int) -> None:
        self._write({"record": "event", "now_ns": now_ns, "kind": _kind_names[type(event)], "body": event})

    def tick(self, now_ns: int) -> None:
        """The controller decides now."""
        self._write({"record": "tick", "now_ns": now_ns})

    def command(self, command: Command, now_ns: int) -> None:
        self._write({"record": "command", "now_ns": now_ns, "kind": _kind_names[type(command)], "body": command})

    def config(self, text: str, now_ns: int) -> None:
        """A new configuration took effect."""
        self._write({"record": "config", "now_ns": now_ns, "text": text})

    def state(self, text: str, now_ns: int) -> None:
        """The controller has this state (a snapshot's text) before what follows."""
        self._write({"record": "state", "now_ns": now_ns, "text": text})

    def _write(self, line: object) -> None:
        # Each event and tick comes here: no context manager, which would cost as much as the line.
        if self.failed:
            return
        try:
            self._file.write(self._encode(line) + b"\n")
        except OSError as error:
            self.failed = str(error)

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        if self.failed:
            return
        try:
            self._file.flush()
        except OSError as error:
            self.failed = str(error)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        try:
            self._file.close()
        except OSError as error:
            self.failed = self.failed or str(error)

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: Path) -> Iterator[Record]:
    """The records of a log in order, the ``Header`` first; ``Truncated`` last if the last line was cut.

    :raises ConfigError: the file cannot be read, is no log, or a line is wrong: ``path:line`` and what.
    """
    number = 0
    for number, line, is_cut in _lines(path):
        try:
            if line is None:
                raise EOFError("the compressed data ends early")
            yield _record(line) if number > 1 else _header(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, EOFError, KeyError, ValueError) as error:
            if is_cut and number > 1:
                yield Truncated(message=f"{path}:{number}: the last line is cut ({error}): the log ends before it")
                return
            raise ConfigError(f"{path}:{number}: {error}") from error
    if number == 0:
        raise ConfigError(f"{path}: the event log is empty")


def create(path: Path) -> IO[bytes]:
    """An empty file for a log, and its folder. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _open(path, "wb")


def _open(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode))


def _lines(path: Path) -> Iterator[tuple[int, bytes | None, bool]]:
    """(number, line, whether the file ends within it); None for the line that the compression swallowed."""
    number = 0
    try:
        with _open(path, "rb") as file:
            try:
                for line in chain(
                    bounded_lines(file, _MOST_HEADER_BYTES, 1), bounded_lines(file, _MOST_LINE_BYTES)
                ):
                    number += 1
                    yield number, line, not line.endswith(b"\n")
            except EOFError:
                yield number + 1, None, True
    except (OSError, zlib.error) as error:
        where = f"{path}:{number + 1}" if number else str(path)
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{where}: cannot read the event log: {why}") from error


def _header(line: bytes) -> Header:
    try:
        header = _decode_header(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"expected the header of an event log, got {line[:60]!r} ({error})") from error
    if header.format != FORMAT:
        raise ValueError(f"expected format {FORMAT!r}, got {header.format!r}")
    if header.version != VERSION:
        raise ValueError(f"version {header.version} of the format: this program reads version {VERSION}")
    return header


def _record(data: bytes) -> Record:
    line = _decode_line(data)
    match line.record:
        case "event":
            event = _body(_event_decoders, line)
            lists = {name: tuple(getattr(event, name)) for name in _LISTS.get(type(event), ())}
            return EventRecord(now_ns=line.now_ns, event=replace(event, **lists) if lists else event)
        case "command":
            return CommandRecord(now_ns=line.now_ns, command=_body(_command_decoders, line))
        case "config":
            return ConfigRecord(now_ns=line.now_ns, text=line.text)
        case "state":
            return StateRecord(now_ns=line.now_ns, state=line.text)
        case "tick":
            return TickRecord(now_ns=line.now_ns)


def _body(decoders: dict[str, Any], line: _Line) -> Any:
    decoder = decoders.get(line.kind)
    if decoder is None:
        raise ValueError(f"no {line.record} of kind {line.kind!r}")
    return decoder.decode(line.body)
