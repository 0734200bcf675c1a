"""The table of formats, and the programs of files in any of them.

A file's format is that of the first record that a row of the table knows. The trace's own is one of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.imports import (
    agentx,
    claude_code,
    codex,
    messages,
    mooncake,
    opencode,
    openhands,
    rounds,
    trajectories,
)
from controlplane.lab.workload.imports.calls import Session, Tally
from controlplane.lab.workload.imports.lineage import linked
from controlplane.lab.workload.imports.reading import Reader, Reading
from controlplane.lab.workload.imports.records import Record, records
from controlplane.lab.workload.trace_lines import BadProgram, ProgramLine, within

_LOOK_RECORDS = 50  # of a file, for one that a format knows: sessions begin with lines of their own
# Columns: of HPMLL/BurstGPT; and of Azure/AzurePublicDataset, ``AzureLLMInferenceDataset2023.md`` at 1a61e6c (of
# 2024 alike) and, with a NumImages before it, ``AzureLMMInferenceDataset2025.md`` at 517b239.
_SINGLE_REQUESTS = {b"request tokens": "BurstGPT", b"contexttokens": "Azure's LLM inference trace"}


def _read_own(records: Iterator[Record], reading: Reading) -> Iterator[ProgramLine]:
    for record in records:
        try:
            line = within(record.read(ProgramLine), reading.max_context_tokens)
        except BadProgram as bad:
            reading.refuse(record.place, bad)
            continue
        reading.tally.add(reading.source, len(line.turns))
        yield line


@dataclass(frozen=True, slots=True)
class Format:
    """A record is of it that has all keys of one of ``keys``. ``has_parents``: they may be in other files."""

    name: str
    keys: tuple[str, ...]
    read: Reader
    has_parents: bool = False

    def knows(self, value: dict[str, Any]) -> bool:
        """Whether that is a record of it."""
        return any(value.keys() >= set(keys.split()) for keys in self.keys)


_OWN = Format("trace", ("program_id turns",), _read_own)
_TRACELAB = "session_id round_index input_tokens_total timing_events"
_OPENHANDS = ("source timestamp kind", "source timestamp action", "source timestamp observation")
FORMATS = (
    _OWN,
    Format("Claude Code", ("sessionId type",), claude_code.read, has_parents=True),
    Format("Codex", ("timestamp type payload",), codex.read, has_parents=True),
    Format("mini-swe-agent", ("trajectory_format messages",), messages.read_mini),
    Format("opencode", ("info messages",), opencode.read, has_parents=True),
    Format("SWE-agent", ("trajectory info",), trajectories.read_swe_agent),
    Format("trae-agent", ("llm_interactions",), trajectories.read_trae),
    Format("OpenHands", _OPENHANDS, openhands.read_events),
    Format("OpenHands", ("history", "events"), openhands.read_results),
    Format("AgentX", ("id block_size requests",), agentx.read),
    Format("TraceLab", (_TRACELAB,), rounds.read_tracelab),
    Format("Dynamo", ("schema event_type", "timestamp event"), rounds.read_dynamo, has_parents=True),
    Format("aiperf", ("metadata metrics",), rounds.read_aiperf),
    Format("aiperf", ("turns",), messages.read_turns),
    Format("Mooncake", tuple(f"input_length {key}" for key in ("output_length", "hash_ids")), mooncake.read),
    Format("tau-bench", ("traj", "simulations"), messages.read_chats),
    Format("ShareGPT", ("conversations", "messages"), messages.read_chats),
)
"""The first that knows a record has it: those of few keys stand last."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What was read of all files."""

    tally: Tally = field(default_factory=Tally)
    unknown: list[Path] = field(default_factory=list)

    def notes(self) -> list[str]:
        """What was guessed and left out, in words."""
        tally = self.tally
        told = {
            "prompts whose tokens are guessed from their text": tally.prompts,
            "replies whose tokens are guessed from their text": tally.replies,
            "gaps in which a person thinks": tally.people,
            "gaps of unknown length, taken for none": tally.unknown,
            "gaps that hold the reply's own time, as nothing tells its end": tally.inexact,
            "sub-agents": tally.children,
            "sub-agents that ran beside their parent, taken for programs of their own": tally.beside,
            "sub-agents whose parent is not there, taken for programs of their own": tally.alone,
            f"files of no known format, as {next(iter(self.unknown), '')}": len(self.unknown),
        }
        return [f"{text}: {count}" for text, count in told.items() if count]


def read_programs(
    paths: Sequence[Path], report: Report, max_context_tokens: int | None = None
) -> Iterator[ProgramLine | str]:
    """The programs of files and folders, each behind its parent; in words, what is refused.

    Raises ``ConfigError`` for a file that cannot be read, and for one of single requests.
    """
    waiting: list[Session] = []  # of formats whose sessions name parents, which any file may have
    files = list(_files(paths))
    names: set[str] = set()
    for path in files:
        found, source = _recognized(path)
        if found is None and len(files) > 1:
            report.unknown.append(path)
            continue
        found = found or _OWN  # which says of each line what it lacks
        reading = Reading(
            path=path,
            name=_name(path, names),
            source=found.name,
            tally=report.tally,
            max_context_tokens=max_context_tokens,
        )
        is_empty = True
        for read in found.read(source, reading):
            is_empty = False
            if found.has_parents and isinstance(read, Session):
                waiting.append(read)
            else:
                yield from _line(read, reading)
            yield from reading.told()
        if is_empty and not reading.refused and found is not _OWN:
            reading.refuse("", f"no session in what looks like {found.name}'s")
        yield from reading.told()
    for session in linked(waiting, report.tally):
        reading = replace(reading, path=session.path)
        yield from _line(session, reading)
        yield from reading.told()


def is_known(path: Path) -> bool:
    """Whether it has sessions of a known format. Raises ``ConfigError`` where it cannot be read."""
    return any(_recognized(file)[0] is not None for file in _files([path]))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file())
        else:
            yield path


def _name(path: Path, names: set[str]) -> str:
    """The file's name without its endings, with its folder's in front where another file has that."""
    stem = path.name.split(".")[0] or path.name
    for name in (stem, f"{path.parent.name}/{stem}", str(path)):
        if name not in names:
            break
    names.add(name)
    return name


def _line(read: Session | ProgramLine, reading: Reading) -> Iterator[ProgramLine]:
    try:
        line = read.line(reading.tally) if isinstance(read, Session) else read
        yield within(line, reading.max_context_tokens)
    except BadProgram as bad:
        reading.refuse("", bad)


def _recognized(path: Path) -> tuple[Format | None, Iterator[Record]]:
    """The file's format, if a row of the table knows a record of it, and all of its records."""
    source = records(path)
    seen: list[Record] = []
    for record in source:
        seen.append(record)
        try:
            value = record.read(object)
        except BadProgram:
            _require_sessions(record, path)
            value = None
        if isinstance(value, dict):
            found = next((each for each in FORMATS if each.knows(value)), None)
            if found is not None:
                return found, chain(seen, source)
        if len(seen) >= _LOOK_RECORDS:
            break
    return None, chain(seen, source)


def _require_sessions(record: Record, path: Path) -> None:
    head = record.data[:200].lower() if isinstance(record.data, bytes) else b""
    for column, name in _SINGLE_REQUESTS.items():
        if column in head:
            raise ConfigError(
                f"{path}: {name} has single requests, so that there is nothing to schedule across turns: bring "
                "sessions of agents"
            )
