"""The table of formats, and the programs of files in any of them.

A file's format is that of the first record that a row of the table knows. The trace's own is one of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
    """``knows`` says whether a record is of it. ``has_parents``: sessions name them, who are in other files."""

    name: str
    knows: Callable[[dict[str, Any]], bool]
    read: Reader
    has_parents: bool = False


_OWN = Format("trace", lambda value: {"program_id", "turns"} <= value.keys(), _read_own)
FORMATS = (
    _OWN,
    Format("Claude Code", claude_code.knows, claude_code.read, has_parents=True),
    Format("Codex", codex.knows, codex.read, has_parents=True),
    Format("opencode", opencode.knows, opencode.read, has_parents=True),
    Format("OpenHands", openhands.knows_event, openhands.read_events),
    Format("OpenHands", openhands.knows_result, openhands.read_results),
    Format("SWE-agent", trajectories.knows_swe_agent, trajectories.read_swe_agent),
    Format("trae-agent", trajectories.knows_trae, trajectories.read_trae),
    Format("AgentX", agentx.knows, agentx.read),
    Format("TraceLab", rounds.knows_tracelab, rounds.read_tracelab),
    Format("Dynamo", rounds.knows_dynamo, rounds.read_dynamo, has_parents=True),
    Format("aiperf", rounds.knows_aiperf, rounds.read_aiperf),
    Format("aiperf", messages.knows_turns, messages.read_turns),
    Format("Mooncake", mooncake.knows, mooncake.read),
    Format("mini-swe-agent", messages.knows_mini, messages.read_mini),
    Format("tau-bench", messages.knows_tau, messages.read_chats),
    Format("ShareGPT", messages.knows_chat, messages.read_chats),
)


@dataclass(slots=True, kw_only=True)
class Report:
    """What was read of all files."""

    tally: Tally = field(default_factory=Tally)
    unknown: list[Path] = field(default_factory=list)

    def notes(self) -> list[str]:
        """What was guessed and left out, in words."""
        tally = self.tally
        told = (
            (tally.prompts, "prompts and {} replies have no count: their tokens are guessed from their texts"),
            (tally.people, "gaps are a person's"),
            (tally.unknown, "gaps have no known length, and are none here"),
            (tally.inexact, "gaps hold the reply's own time: nothing tells when it ended"),
            (tally.children, "programs are sub-agents"),
            (tally.beside, "sub-agents ran beside their parents: programs of their own here"),
            (tally.alone, "sub-agents' parents are not among the files: programs of their own here"),
            (len(self.unknown), f"files are of no known format: {', '.join(map(str, self.unknown[:3]))}"),
        )
        counts = (tally.prompts or tally.replies, *(count for count, _ in told[1:]))
        return [
            f"{count} {text.format(tally.replies)}"
            for (count, text), wanted in zip(told, counts, strict=True)
            if wanted
        ]


def read_programs(
    paths: Sequence[Path], report: Report, max_context_tokens: int | None = None
) -> Iterator[ProgramLine | str]:
    """The programs of files and folders, each behind its parent; in words, what is refused.

    Raises ``ConfigError`` for a file that cannot be read, and for one of single requests.
    """
    waiting: list[Session] = []  # of formats whose sessions name parents, which any file may have
    files = list(_files(paths))
    for path in files:
        found, source = _recognized(path)
        if found is None and len(files) > 1:
            report.unknown.append(path)
            continue
        found = found or _OWN  # which says of each line what it lacks
        reading = Reading(path=path, source=found.name, tally=report.tally, max_context_tokens=max_context_tokens)
        for read in found.read(source, reading):
            if found.has_parents and isinstance(read, Session):
                waiting.append(read)
            else:
                yield from _line(read, reading)
            yield from reading.told()
        yield from reading.told()
    reading = Reading(path=Path(), source="", tally=report.tally, max_context_tokens=max_context_tokens)
    for session in linked(waiting, report.tally):
        yield from _line(session, reading)
    yield from reading.told()


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file())
        else:
            yield path


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
