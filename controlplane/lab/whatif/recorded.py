"""What a node's event log says of its programs, its engines and its host, turn by turn.

Times are the daemon's, in nanoseconds. What an engine tells of when something happened is its own clock's: that is
laid over the daemon's by the event that took the least time to arrive.
"""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds
from controlplane.wire.log import CommandRecord, ConfigRecord, EventRecord, Header, StateRecord, read_log

_MOST_DRIFT_NS = seconds(1)  # of an engine's clock against the daemon's, over a log


@dataclass(slots=True, kw_only=True)
class SeenTurn:
    """One turn, as the gate and its engine told of it. A time that was not told is -1."""

    turn_id: str
    asked_ns: int = -1  # the gate held it
    admitted_ns: int = -1  # and was told to let it go
    engine: str = ""
    publisher: str = ""
    submitted_ns: int = -1
    submitted_own_ns: int = 0  # by the engine's clock, as the next one; 0: not told
    ended_own_ns: int = 0
    launch_ns: int = 0  # from then to its first prefill
    prefill_ns: int = -1
    ended_ns: int = -1
    service_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0
    output_tokens: int = 0
    tool: str = ""
    tool_calls: int = -1  # -1: nobody read the reply
    is_last: bool = False
    ok: bool = True
    abandoned: bool = False

    @property
    def was_served(self) -> bool:
        """Whether its engine told of all of it."""
        return self.submitted_ns >= 0 and self.prefill_ns >= 0 and self.ended_ns >= 0 and self.output_tokens > 0

    @property
    def first_token_ns(self) -> int:
        return self.submitted_ns + self.launch_ns + self.prefill_ns


@dataclass(slots=True, kw_only=True)
class SeenTool:
    """One call of a tool. ``waits``: the daemon let it start, so that its wait was a decision."""

    tool: str
    asked_ns: int = -1
    started_ns: int = -1
    ended_ns: int = -1
    waits: bool = False


@dataclass(slots=True, kw_only=True)
class SeenProgram:
    """One program, with its turns and tools in the order in which they were first told of."""

    program_id: str
    first_ns: int
    agent: str = ""
    parent_id: str = ""
    reports: bool = False  # its run or its tools
    ended_ns: int = -1  # it said so
    turns: dict[str, SeenTurn] = field(default_factory=dict)
    tools: dict[str, SeenTool] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SeenEngine:
    """One engine's memory."""

    pool_tokens: int
    block_tokens: int
    host_tokens: int
    passive: str  # why it pins and orders nothing; empty if it does
    retractions: int = 0


@dataclass(slots=True, kw_only=True)
class Recorded:
    """A whole log. ``configs``: when each took effect, and its text; the first one from the beginning."""

    begin_ns: int = -1
    end_ns: int = -1
    programs: dict[str, SeenProgram] = field(default_factory=dict)
    known_before: set[str] = field(default_factory=set)  # programs that were there when the log began
    engines: dict[str, SeenEngine] = field(default_factory=dict)
    hosts: list[tuple[int, ev.HostSampled]] = field(default_factory=list)  # when the host was sampled
    timeout_ns: int = 0  # for which a gate held who had not begun, at most; 0: none said so
    configs: list[tuple[int, str]] = field(default_factory=list)
    answers_ns: list[int] = field(default_factory=list)  # from each decision until its answer came
    note: str = ""  # the log's end is cut


def read_recorded(path: Path) -> Recorded:
    """Read a log. Raises ``ConfigError`` where it is none, or is empty."""
    records = read_log(path)
    header = next(records)
    if not isinstance(header, Header):
        raise ConfigError(f"{path}: the log has no header")
    text = header.config or f"preset = {json.dumps(header.preset)}\n"
    found = Recorded(configs=[(0, text)])
    reader = _Reader(found)
    for record in records:
        match record:
            case EventRecord():
                reader.event(record.event, record.now_ns)
            case CommandRecord():
                reader.command(record.command, record.now_ns)
            case ConfigRecord():
                found.configs.append((record.now_ns, record.text))
            case StateRecord():
                found.known_before |= _programs_of(record.state)
            case _:
                found.note = getattr(record, "message", found.note)
    if found.begin_ns < 0:
        raise ConfigError(f"{path}: the log has no events")
    reader.lay_clocks_over(_time_scale(text))
    return found


class _Reader:
    """Takes a log in, record by record."""

    def __init__(self, found: Recorded) -> None:
        self._found = found
        self._decided: dict[int, int] = {}  # by the command's number: when, until it is answered
        self._clocks: dict[str, list[tuple[int, int]]] = {}  # by publisher: its own time and the daemon's
        self._takes: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.ProgramArrived: self._arrived,
            ev.ProgramEnded: self._ended,
            ev.TurnQueued: self._queued,
            ev.TurnAbandoned: self._abandoned,
            ev.TurnSubmitted: self._submitted,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.ReplyRead: self._reply_read,
            ev.ToolEnqueued: self._tool_asked,
            ev.ToolStarted: self._tool_started,
            ev.ToolEnded: self._tool_ended,
            ev.PoolSampled: self._pool,
            ev.HostSampled: lambda event, now_ns: found.hosts.append((now_ns, event)),
            ev.CommandApplied: self._answered,
            ev.CommandRejected: self._answered,
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        self._found.begin_ns = now_ns if self._found.begin_ns < 0 else self._found.begin_ns
        self._found.end_ns = now_ns
        take = self._takes.get(type(event))
        if take is not None:
            take(event, now_ns)

    def command(self, command: cmd.Command, now_ns: int) -> None:
        """Of what was decided only when, and whose turns were let go: all else is decided anew."""
        self._decided[command.command_id] = now_ns
        if isinstance(command, cmd.Admit) and (program := self._found.programs.get(command.program_id)) is not None:
            for turn in program.turns.values():
                if turn.asked_ns >= 0 and turn.admitted_ns < 0 and turn.submitted_ns < 0:
                    turn.admitted_ns = now_ns

    def lay_clocks_over(self, time_scale: float) -> None:
        """Engines' own times in place of those at which their events came, where their clocks keep time."""
        offsets = {name: _offset(pairs, time_scale) for name, pairs in self._clocks.items()}
        for program in self._found.programs.values():
            for turn in program.turns.values():
                offset = offsets.get(turn.publisher)
                if offset is None:
                    continue
                if turn.submitted_own_ns:
                    turn.submitted_ns = round(turn.submitted_own_ns * time_scale) + offset
                if turn.ended_own_ns:
                    turn.ended_ns = round(turn.ended_own_ns * time_scale) + offset

    # -- programs and their tools

    def _program(self, event: ev.ProgramEvent, now_ns: int) -> SeenProgram:
        new = SeenProgram(program_id=event.program_id, first_ns=now_ns)
        return self._found.programs.setdefault(event.program_id, new)

    def _arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        program = self._program(event, now_ns)
        program.parent_id = program.parent_id or event.parent_id
        program.reports = program.reports or not event.parent_id  # a gate tells of children

    def _ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        program = self._program(event, now_ns)
        if not event.for_now:
            program.ended_ns = now_ns
        program.reports = True

    def _tool_asked(self, event: ev.ToolEnqueued, now_ns: int) -> None:
        tool = self._tool(event, now_ns)
        tool.asked_ns = now_ns if tool.asked_ns < 0 else tool.asked_ns
        tool.waits = tool.waits or event.wants_slot

    def _tool_started(self, event: ev.ToolStarted, now_ns: int) -> None:
        tool = self._tool(event, now_ns)
        tool.started_ns = now_ns
        tool.asked_ns = now_ns if tool.asked_ns < 0 else tool.asked_ns

    def _tool_ended(self, event: ev.ToolEnded, now_ns: int) -> None:
        if event.told_after_ns:  # no decision knew of the call while it ran
            return
        tool = self._tool(event, now_ns)
        tool.ended_ns = now_ns
        tool.started_ns = tool.started_ns if tool.started_ns >= 0 else now_ns - event.duration_ns
        tool.asked_ns = tool.asked_ns if tool.asked_ns >= 0 else tool.started_ns

    def _tool(self, event: ev.ToolEnqueued | ev.ToolStarted | ev.ToolEnded, now_ns: int) -> SeenTool:
        program = self._program(event, now_ns)
        program.reports = True
        return program.tools.setdefault(event.call_id, SeenTool(tool=event.tool))

    # -- turns

    def _turn(self, event: Any, now_ns: int) -> SeenTurn:
        turns = self._program(event, now_ns).turns
        return turns.setdefault(event.turn_id, SeenTurn(turn_id=event.turn_id))

    def _queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        turn, program = self._turn(event, now_ns), self._found.programs[event.program_id]
        turn.asked_ns = now_ns if turn.asked_ns < 0 else turn.asked_ns
        self._found.timeout_ns = max(self._found.timeout_ns, event.timeout_ns)
        program.agent = program.agent or event.agent
        program.parent_id = program.parent_id or event.parent_id

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        self._turn(event, now_ns).abandoned = True

    def _submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.engine, turn.publisher = place_of(event.publisher), event.publisher
        turn.submitted_ns, turn.submitted_own_ns = now_ns, event.at_ns
        turn.prompt_tokens = turn.prompt_tokens or event.prompt_tokens
        self._note_clock(event, now_ns)

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.launch_ns, turn.prefill_ns = event.launch_delay_ns, event.prefill_ns
        turn.prompt_tokens = event.prompt_tokens or turn.prompt_tokens
        turn.cached_tokens, turn.loaded_tokens = event.cached_tokens, event.loaded_tokens
        self._note_clock(event, now_ns)

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.ended_ns, turn.ended_own_ns = now_ns, event.at_ns
        turn.service_ns, turn.output_tokens, turn.ok = event.service_ns, event.output_tokens, event.ok
        turn.prompt_tokens = turn.prompt_tokens or event.prompt_tokens
        if event.tool_calls >= 0:
            turn.tool, turn.tool_calls = event.tool, event.tool_calls
        self._note_clock(event, now_ns)

    def _reply_read(self, event: ev.ReplyRead, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.tool, turn.tool_calls = event.tool, event.tool_calls
        turn.is_last = turn.is_last or event.is_last

    # -- engines and the host

    def _answered(self, event: ev.CommandApplied | ev.CommandRejected, now_ns: int) -> None:
        decided_ns = self._decided.pop(event.command_id, None)
        if decided_ns is not None:
            self._found.answers_ns.append(now_ns - decided_ns)

    def _pool(self, event: ev.PoolSampled, now_ns: int) -> None:
        if event.disaggregation == ev.DECODE:
            return  # no room of programs
        self._found.engines[place_of(event.publisher)] = SeenEngine(
            pool_tokens=event.total_blocks * event.block_tokens,
            block_tokens=event.block_tokens,
            host_tokens=event.host_total_blocks * event.block_tokens,
            passive=event.reason,
            retractions=event.retractions,
        )

    def _note_clock(self, event: ev.Event, now_ns: int) -> None:
        if event.at_ns:
            self._clocks.setdefault(event.publisher, []).append((event.at_ns, now_ns))


def _offset(pairs: list[tuple[int, int]], time_scale: float) -> int | None:
    """What to add to a publisher's own time; None where its clock does not go as the daemon's does."""
    apart = [now_ns - round(at_ns * time_scale) for at_ns, now_ns in pairs]
    half = len(apart) // 2
    if half and abs(min(apart[:half]) - min(apart[half:])) > _MOST_DRIFT_NS * time_scale:
        return None
    return min(apart)


def _time_scale(text: str) -> float:
    return float(tomllib.loads(text).get("time_scale", 1.0))


def _programs_of(state: str) -> set[str]:
    """The programs in a snapshot that have not ended."""
    try:
        programs = json.loads(state)["ledger"]["programs"]
        return {name for name, program in programs.items() if program.get("status") != "ended"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
