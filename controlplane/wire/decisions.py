"""The decision log on disk: its lines, and how they are read back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.core.regret import Verdict
from controlplane.wire.files import bounded_lines

_MOST_LINE_BYTES = 1 << 24


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """The node when it was decided."""

    limit: int  # 0: none
    window: float
    active: int
    waiting: int
    kv_use_ratio: float
    cpu_use_ratio: float
    tools_active: int
    tool_slowdown_ratio: float


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A program that waited too."""

    program_id: str
    blocks: int
    waited_ns: int


class HeldFor(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a hold: what bound, for how long, and for whom room was reserved, where it was."""

    reason: str
    text: str
    held_ns: int


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="decision"):
    """A command; or, with number 0 and kind ``left``, a held turn whose client left: why is its reason.

    ``at`` is UTC, ISO 8601; ``values`` are the command's own.
    """

    at: str
    now_ns: int
    number: int
    program_id: str
    kind: str
    reason: str
    rule: str
    values: dict[str, Any]
    numbers: Numbers
    tool: str = ""
    context_tokens: int = 0
    engine: str = ""  # where its next turn runs, or its last one ran
    turns: list[str] = []  # by id: those that an admission lets go
    waited_ns: int = 0  # that they were held for
    held: list[HeldFor] = []  # why, the longest first
    cause: str = ""  # the event by which room was found, where one did
    alternatives: list[Alternative] = []


class OutcomeRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="outcome"):
    """What became of decision ``number``."""

    at: str
    number: int
    program_id: str
    outcome: str
    after_ns: int
    turn_id: str = ""
    engine: str = ""  # that told of it


class VerdictRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="verdict"):
    """What a decision cost and brought, once that is known; its number is 0 where nobody decided."""

    at: str
    verdict: Verdict

    @property
    def number(self) -> int:
        return self.verdict.number

    @property
    def program_id(self) -> str:
        return self.verdict.program_id


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has had with its sub-agents, and may have; where the daemon has tenants."""

    turns: int
    kv_token_s: float
    most_turns: int = 0  # 0: any number
    most_kv_token_s: float = 0.0  # likewise
    stopped: str = ""  # why it was, if it was


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="run"):
    """The run of a sub-agent, or of a program that had some, which has ended; by the daemon's own clock."""

    at: str
    program_id: str
    parent_id: str  # empty: it is a root
    began_ns: int
    ended_ns: int
    turns: int
    account: Account | None = None  # of a root


Record = DecisionRecord | OutcomeRecord | VerdictRecord | RunRecord
_decode: Any = msgspec.json.Decoder(Record).decode


def log_path(node: str, state_dir: Path) -> Path:
    """The file that a daemon writes."""
    return state_dir / node / "decisions.jsonl"


def read_decisions(path: Path) -> Iterator[Record]:
    """The records of a log and of what was rotated, the oldest first. A line that was cut is left out.

    :raises ConfigError: there is no such log, or it cannot be read.
    """
    found = False
    for file in (*_rotated(path), path):
        try:
            with file.open("rb") as lines:
                found = True
                for line in bounded_lines(lines, _MOST_LINE_BYTES):
                    try:
                        yield _decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        continue
        except FileNotFoundError:
            continue  # it was rotated away meanwhile
        except OSError as error:
            raise ConfigError(f"{file}: cannot read the decision log: {error.strerror or error}") from error
    if not found:
        raise ConfigError(f"{path}: no decision log: has a daemon run here?")


def _rotated(path: Path) -> list[Path]:
    try:
        numbered = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
    except OSError:
        return []  # whoever opens the log itself is told why
    return sorted(numbered, key=lambda each: int(each.suffix[1:]), reverse=True)
