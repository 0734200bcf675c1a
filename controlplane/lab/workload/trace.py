"""Agent programs to replay: their turns' token counts and their tool gaps.

A trace is JSON Lines, gzipped where the name ends in ``.gz``, one program a line::

    {"program_id": "p", "source": "s", "turns": [{"input_tokens": 9, "output_tokens": 2, "tool": "Bash:ls",
     "tool_ms": 4.5, "cached_prefix_tokens": null}]}

``input_tokens`` is the whole prompt of a call; ``tool_ms`` the gap between the call's end and the next call.

A sub-agent is a program of its own, behind its parent's line, with ``parent_id`` and ``spawn_turn``: it begins when
that turn of its parent has ended (counted from 0), and the parent's next turn waits for all that began with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.text import sanitize
from controlplane.core.model.types import seconds
from controlplane.lab.workload.imports.formats import FORMATS, Report, read_programs
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace_lines import ProgramLine, Turn

__all__ = ["ProgramTrace", "Trace", "Turn", "gap_ns", "read_trace", "reusable_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTrace:
    """One agent session: at least one turn, in order.

    A sub-agent has a ``parent_id`` and begins when its parent's turn ``spawn_turn``, counted from 0, has ended.
    Behind the prefix that all programs share its prompts begin with ``family_tokens`` tokens that it has in common
    with the parent's other sub-agents. A rollout is of a ``group``: its name, and how many begin with the same
    prompt, as their ``agent`` and ``shared_tokens`` say.
    """

    program_id: str
    source: str
    turns: tuple[Turn, ...]
    telemetry: Telemetry | None = None  # what it tells of itself; None: as the run says
    shared_tokens: int | None = None  # that its prompts and those of its agent begin with; None: as the run says
    agent: str = ""  # whose beginning that is; empty: everybody's
    parent_id: str = ""
    spawn_turn: int = 0
    family_tokens: int = 0
    group: tuple[str, int] = ("", 0)

    @property
    def tokens(self) -> int:
        """Sum over turns of prompt and output."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        """The longest prompt and output of any turn."""
        return max(turn.input_tokens + turn.output_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The programs that can be run, and a line on each one that cannot."""

    programs: tuple[ProgramTrace, ...]
    rejected: list[str]
    name: str = ""
    notes: tuple[str, ...] = ()  # what of them was guessed

    @property
    def turns(self) -> int:
        return sum(len(program.turns) for program in self.programs)


def reusable_tokens(previous: Turn | None, turn: Turn) -> int:
    """Leading tokens of ``turn``'s prompt that the program's last turn already held.

    A prompt that is no shorter than the last prompt repeats it, and the reply too if there is room; agents leave
    reasoning out of the history. A shorter one is a compaction: the history was written anew, as it is where
    the turn says so.
    """
    if previous is None or turn.rewrites or turn.input_tokens < previous.input_tokens:
        return 0
    context_tokens = previous.input_tokens + previous.output_tokens
    return context_tokens if turn.input_tokens >= context_tokens else previous.input_tokens


def gap_ns(turn: Turn) -> int:
    """The time between this turn's end and the program's next turn."""
    return 0 if turn.tool_ms is None else seconds(turn.tool_ms / 1e3)


def read_trace(
    path: str | Path,
    *,
    max_programs: int | None = None,
    max_context_tokens: int | None = None,
) -> Trace:
    """Read the first ``max_programs`` valid programs of a trace, and the sub-agents of each.

    ``path`` may also be a file, or a folder of files, in any format of ``imports/formats.py``. A program is invalid
    with a missing field, a wrong type, a turn of no tokens, or a context longer than ``max_context_tokens``; a
    sub-agent also where no valid parent precedes it, or does not go on from that turn. Each is described in
    ``Trace.rejected`` as ``path:line: field: what is wrong``.

    Raises ``ConfigError`` when the file cannot be read, and when nothing valid is left.
    """
    path = Path(path)
    programs: dict[str, ProgramTrace] = {}
    rejected: list[str] = []
    report = Report()
    roots = 0
    for line in read_programs([path], report, max_context_tokens):
        if isinstance(line, str):
            rejected.append(line)
            continue
        parsed = _program(line)
        if parsed.program_id in programs:
            problem = f"{path}: program_id {parsed.program_id!r} occurs twice; the first one is used"
        elif orphaned := _why_orphaned(parsed, programs):
            problem = f"{path}: {parsed.program_id!r}: {orphaned}"
        else:
            roots += not parsed.parent_id
            if max_programs is not None and roots > max_programs:
                break
            programs[parsed.program_id] = parsed
            continue
        rejected.append(problem)
    if not programs:
        first = f"; the first of {len(rejected)} problems: {rejected[0]}" if rejected else ": the file is empty"
        known = ", ".join(dict.fromkeys(each.name for each in FORMATS))
        raise ConfigError(f"{path}: no valid program{first} (known formats: {known})")
    return Trace(
        programs=tuple(programs.values()), rejected=rejected, name=_short_name(path), notes=tuple(report.notes())
    )


def _program(line: ProgramLine) -> ProgramTrace:
    return ProgramTrace(
        program_id=sanitize(line.program_id),
        source=sanitize(line.source),
        turns=tuple(turn.turn() for turn in line.turns),
        parent_id=sanitize(line.parent_id or ""),
        spawn_turn=line.spawn_turn or 0,
        family_tokens=line.family_tokens or 0,
    )


def _why_orphaned(program: ProgramTrace, before: Mapping[str, ProgramTrace]) -> str:
    """What is wrong with whose child it is; nothing for a root. A parent comes first, so that none is its own."""
    if not program.parent_id:
        return ""
    parent = before.get(program.parent_id)
    if parent is None:
        return f"parent_id: expected a valid program before it, got {program.parent_id!r}"
    if program.spawn_turn >= len(parent.turns) - 1:
        asked = f"a turn that {parent.program_id!r} goes on from, below {len(parent.turns) - 1}"
        return f"spawn_turn: expected {asked}, got {program.spawn_turn}"
    return ""


def _short_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")
