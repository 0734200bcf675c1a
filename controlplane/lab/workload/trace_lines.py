"""One line of a trace: reading it, and saying precisely what is wrong with it."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from controlplane.core.errors import ConfigError

THINK_TIME = "human"
MOST_LINE_BYTES = 256 << 20  # unzipped: a program of hundreds of thousands of turns is shorter
_MOST_TOOL_MS = 366 * 86_400_000.0  # a year: a run that waits longer would not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the gap after it. ``tool_ms`` is None where there is no gap or it is not known."""

    input_tokens: int
    output_tokens: int
    tool: str = ""
    tool_ms: float | None = None
    cached_prefix_tokens: int | None = None
    rewrites: bool = False  # its prompt begins like none before it, though it may be longer

    @property
    def calls_tool(self) -> bool:
        """Whether a tool runs in the gap; a person's think time is no tool."""
        return self.tool_ms is not None and self.tool not in ("", THINK_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line's program, in the fields of ``ProgramTrace``."""

    program_id: str
    source: str
    turns: tuple[Turn, ...]
    parent_id: str
    spawn_turn: int
    family_tokens: int


class BadProgram(Exception):
    """A line that is no program; the message names the field."""


def read_lines(path: Path) -> Iterator[tuple[int, str | BadProgram]]:
    """Lines with their numbers; a file that breaks off yields what it held and then says so.

    Raises ``ConfigError`` when the file cannot be opened, and for a line without end: a few megabytes of gzip may
    hold one that no memory does.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise ConfigError(f"{path}:{number}: expected lines of at most {MOST_LINE_BYTES} bytes")
                try:
                    yield number, line.decode()
                except UnicodeDecodeError as error:
                    yield number, BadProgram(f"not UTF-8 text: {error.reason} at byte {error.start}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if number == 0 and not isinstance(error, EOFError):
            raise ConfigError(f"{path}: not a gzip file: {error}") from error
        yield number + 1, BadProgram(f"the gzip file breaks off here: {error}")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path}: cannot read the trace: {reason}") from error


def parse_program(line: str, max_context_tokens: int | None) -> Line:
    """A line's program. Raises ``BadProgram``."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise BadProgram(f"not JSON: {error}") from error
    except RecursionError as error:
        raise BadProgram("not JSON: nested too deeply") from error
    if not isinstance(data, dict):
        raise BadProgram(f"expected an object, got {_shown(data)}")
    program_id = _text(data, "program_id")
    if not program_id:
        raise BadProgram("program_id: expected a name, got an empty string")
    source = _text(data, "source") if "source" in data else ""
    turns = _field(data, "turns")
    if not isinstance(turns, list) or not turns:
        raise BadProgram(f"turns: expected a list of at least one turn, got {_shown(turns)}")
    return Line(
        program_id=program_id,
        source=source,
        turns=tuple(_turn(turn, i, max_context_tokens) for i, turn in enumerate(turns)),
        parent_id=_text(data, "parent_id") if data.get("parent_id") is not None else "",
        spawn_turn=_count(data, "spawn_turn", "", least=0) if data.get("spawn_turn") is not None else 0,
        family_tokens=_count(data, "family_tokens", "", least=0) if data.get("family_tokens") is not None else 0,
    )


def _turn(data: object, index: int, max_context_tokens: int | None) -> Turn:
    where = f"turns[{index}]"
    if not isinstance(data, dict):
        raise BadProgram(f"{where}: expected an object, got {_shown(data)}")
    where += "."
    turn = Turn(
        input_tokens=_count(data, "input_tokens", where),
        output_tokens=_count(data, "output_tokens", where),
        tool=_text(data, "tool", where) if data.get("tool") is not None else "",
        tool_ms=_duration(data, where),
        cached_prefix_tokens=(
            _count(data, "cached_prefix_tokens", where, least=0)
            if data.get("cached_prefix_tokens") is not None
            else None
        ),
        rewrites=_flag(data, "rewrites", where),
    )
    context_tokens = turn.input_tokens + turn.output_tokens
    if max_context_tokens is not None and context_tokens > max_context_tokens:
        raise BadProgram(
            f"{where}input_tokens: expected a prompt and output of <= {max_context_tokens} tokens, "
            f"got {context_tokens}"
        )
    return turn


def _field(data: Mapping[str, object], name: str, where: str = "") -> object:
    if name not in data:
        raise BadProgram(f"{where}{name}: missing")
    return data[name]


def _text(data: Mapping[str, object], name: str, where: str = "") -> str:
    value = _field(data, name, where)
    if not isinstance(value, str):
        raise BadProgram(f"{where}{name}: expected text, got {_shown(value)}")
    return value


def _count(data: Mapping[str, object], name: str, where: str, least: int = 1) -> int:
    value = _field(data, name, where)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadProgram(f"{where}{name}: expected a whole number, got {_shown(value)}")
    if value < least:
        raise BadProgram(f"{where}{name}: expected >= {least}, got {value}")
    return value


def _flag(data: Mapping[str, object], name: str, where: str) -> bool:
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadProgram(f"{where}{name}: expected true or false, got {_shown(value)}")


def _duration(data: Mapping[str, object], where: str) -> float | None:
    value = data.get("tool_ms")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadProgram(f"{where}tool_ms: expected milliseconds or null, got {_shown(value)}")
    if not isfinite(value) or value < 0:
        raise BadProgram(f"{where}tool_ms: expected >= 0, got {value}")
    if value > _MOST_TOOL_MS:
        raise BadProgram(f"{where}tool_ms: expected at most a year, {_MOST_TOOL_MS:g}, got {value:g}")
    return float(value)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
