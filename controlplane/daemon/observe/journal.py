"""Builds each turn, tool call and decision of a program once; whatever is told of programs is a view of that.

The latest entries are kept, of all programs together so many at most; the oldest goes first, whoever's it is. What
is still open is kept longer: of who waits one wants to know since when. All is noted behind the decision; an event
costs a few microseconds.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds
from controlplane.core.regret import Verdict
from controlplane.core.scheduling.controller import Controller
from controlplane.wire.names import snake_case

MOST_ENTRIES = 40_000  # about 20 MB, or 30 where each is of another program; beside those of each known program:
_OF_EACH = 2
_MOST_AWAITED = 16  # decisions about a program whose outcome is awaited; what is older had none
_PATIENCE = 8  # entries in a row that are kept as they are open
_LATE_NS = seconds(5)  # gates and engines tell of a turn on connections of their own
_LATEST = 8  # entries among which a turn is looked for that has just ended


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A model call. Times are the daemon's, when it heard of each; 0: that did not happen, or was not heard of."""

    turn_id: str
    trace: str = ""  # its client's, as W3C's `traceparent`
    engine: str = ""  # its place, `node/role`
    queued_ns: int = 0  # a gate began to hold it
    admitted_ns: int = 0  # and was told to let it go
    submitted_ns: int = 0  # the engine took it into its own queue
    launch_delay_ns: int = 0  # for which it waited there
    first_token_ns: int = 0
    ended_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, what was found
    loaded_tokens: int = 0  # of these, below the device
    output_tokens: int = 0
    end: str = ""  # why no whole reply came: `aborted`, or why it left the gate

    @property
    def began_ns(self) -> int:
        """When it was first heard of."""
        return self.queued_ns or self.submitted_ns or self.first_token_ns or self.ended_ns

    @property
    def is_held(self) -> bool:
        """Whether a gate holds it."""
        return bool(self.queued_ns) and not (self.admitted_ns or self.submitted_ns or self.ended_ns)


@dataclass(slots=True, kw_only=True, eq=False)
class ToolCall:
    """A tool's call. Times as of a turn."""

    tool: str
    asked_ns: int = 0  # it waits until the host has room for it
    started_ns: int = 0
    ended_ns: int = 0
    duration_ns: int = 0  # as its host measured it
    ok: bool = True

    @property
    def began_ns(self) -> int:
        """When it was first heard of."""
        return self.asked_ns or self.started_ns


@dataclass(slots=True, kw_only=True, eq=False)
class Decided:
    """A command about the program."""

    at_ns: int
    number: int
    kind: str
    reason: str
    until_ns: int = 0  # of a pin: when it ended, or will end by itself
    engine: str = ""  # of a placement: where
    rejected: str = ""  # why the engine would not


Entry = Turn | ToolCall | Decided | Verdict


@dataclass(slots=True, kw_only=True, eq=False)
class History:
    """What is kept of one program, the oldest entry in front."""

    program_id: str
    began_ns: int
    parent_id: str = ""
    trace: str = ""  # of its first turn whose client sent one
    seen_ns: int = 0
    ended_ns: int = 0  # 0: it has not
    turns: int = 0  # that were heard of
    left_out: int = 0  # entries that made room for others
    entries: deque[Entry] = field(default_factory=deque)
    open: dict[str, Turn | ToolCall] = field(default_factory=dict)
    awaited: list[Decided] = field(default_factory=list)  # whose outcome is not known
    pin: Decided | None = None

    @property
    def held(self) -> list[Turn]:
        """Its turns that gates hold."""
        return [each for each in self.open.values() if isinstance(each, Turn) and each.is_held]


class View:
    """Is told of what the journal makes of the events. What a view has no use for does nothing."""

    def command(self, command: cmd.Command, history: History | None, now_ns: int) -> None:
        """Something was decided; about a program, where there is a history."""

    def rejected(self, decided: Decided, event: ev.CommandRejected, now_ns: int) -> None:
        """An engine or a gate would not."""

    def turn_left(self, history: History, turn: Turn, now_ns: int) -> None:
        """A gate does not hold the turn any more: its client left, or it was refused."""

    def first_token(self, history: History, turn: Turn, now_ns: int) -> None:
        """The turn's first token came."""

    def turn_ended(self, history: History, turn: Turn, now_ns: int, *, is_known: bool) -> None:
        """An engine ended the turn. ``is_known``: the turn counted as ended before."""

    def tool_ended(self, history: History, call: ToolCall, now_ns: int) -> None:
        """A tool's call ended."""

    def program_ended(self, history: History, now_ns: int) -> None:
        """The program ended. What is open ends with it."""

    def verdict(self, verdict: Verdict) -> None:
        """It is known what came of something."""


class Journal:
    """A recorder of what happens, whose ``views`` hear what it made of that."""

    def __init__(self, controller: Callable[[], Controller], most: int = MOST_ENTRIES) -> None:
        self.controller = controller
        self.views: list[View] = []
        self.now_ns = 0  # of what was heard last
        self.histories: dict[str, History] = {}
        self.children: dict[str, dict[str, None]] = {}  # by parent
        self._most = most
        self._order: deque[tuple[History, str]] = deque()  # whose entries, and their keys in ``open``
        self._takes: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.TurnQueued: self._queued,
            ev.TurnSubmitted: self._submitted,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.TurnAbandoned: self._abandoned,
            ev.ToolEnqueued: self._tool_asked,
            ev.ToolStarted: self._tool_started,
            ev.ToolEnded: self._tool_ended,
            ev.ProgramArrived: self._arrived,
            ev.ProgramEnded: self._program_ended,
            ev.PinReclaimed: self._reclaimed,
            ev.CommandRejected: self._rejected,
        }

    # What a recorder is told

    def event(self, event: ev.Event, now_ns: int) -> None:
        """Something happened."""
        self.now_ns = now_ns
        if (take := self._takes.get(type(event))) is not None:
            take(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """Nothing: the commands say it all."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: decisions say why they were made."""

    def command(self, command: cmd.Command, now_ns: int) -> None:
        """Something was decided."""
        self.now_ns = now_ns
        history = self._decide(command, now_ns) if isinstance(command, cmd.ProgramCommand) else None
        for view in self.views:
            view.command(command, history, now_ns)
        if isinstance(command, cmd.Admit) and history is not None:
            for turn in history.held:
                turn.admitted_ns = now_ns

    def _decide(self, command: cmd.ProgramCommand, now_ns: int) -> History:
        history = self._history(command.program_id, now_ns)
        decided = Decided(
            at_ns=now_ns, number=command.command_id, kind=snake_case(type(command)), reason=command.reason
        )
        if isinstance(command, cmd.Retain | cmd.Release | cmd.Demote | cmd.Discard):
            _end_pin(history, now_ns)
        if isinstance(command, cmd.Retain):
            decided.until_ns = now_ns + command.ttl_ns
            history.pin = decided
        elif isinstance(command, cmd.Place):
            decided.engine = command.replica
        elif isinstance(command, cmd.Adopt):
            self._belongs_to(history, command.parent_id)
        self._keep(history, decided)
        history.awaited.append(decided)
        del history.awaited[:-_MOST_AWAITED]
        return history

    def verdict(self, verdict: Verdict) -> None:
        """It is known what came of something."""
        self._keep(self._history(verdict.program_id, verdict.closed_ns), verdict)
        for view in self.views:
            view.verdict(verdict)

    # Turns

    def _queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        if not turn.ended_ns:  # it is asked for again while it is held
            turn.queued_ns, turn.admitted_ns = turn.queued_ns or now_ns, 0

    def _submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.engine = place_of(event.publisher)
        if not turn.ended_ns:
            turn.submitted_ns = now_ns
            _end_pin(self.histories[event.program_id], now_ns)  # the running turn holds the context by itself

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.engine, turn.launch_delay_ns = place_of(event.publisher), event.launch_delay_ns
        turn.prompt_tokens, turn.cached_tokens = event.prompt_tokens, event.cached_tokens
        turn.loaded_tokens = event.loaded_tokens
        if not turn.ended_ns:
            turn.first_token_ns = now_ns
        history = self.histories[event.program_id]
        for view in self.views:
            view.first_token(history, turn, now_ns)
        history.awaited.clear()

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        is_known, turn.ended_ns = bool(turn.ended_ns), turn.ended_ns or now_ns
        turn.engine = turn.engine or place_of(event.publisher)
        turn.prompt_tokens = event.prompt_tokens or turn.prompt_tokens
        turn.cached_tokens = event.cached_tokens or turn.cached_tokens
        turn.output_tokens = event.output_tokens
        turn.end = "" if event.ok else "aborted"
        history = self.histories[event.program_id]
        history.open.pop(event.turn_id, None)
        for view in self.views:
            view.turn_ended(history, turn, now_ns, is_known=is_known)

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        history = self.histories.get(event.program_id)
        if history is None:  # none is made: without an entry nothing would take it away again
            return
        history.seen_ns = max(history.seen_ns, now_ns)
        turn = history.open.pop(event.turn_id, None)
        if isinstance(turn, Turn):
            turn.end = event.reason or "abandoned"
            for view in self.views:
                view.turn_left(history, turn, now_ns)
            turn.ended_ns = now_ns

    def _turn(self, event: Any, now_ns: int) -> Turn:
        """The event's turn; one that has just ended, where word of it is late; else a new one."""
        history, turn_id = self._history(event.program_id, now_ns), event.turn_id
        turn = history.open.get(turn_id)
        if isinstance(turn, Turn):
            return turn
        for entry in islice(reversed(history.entries), _LATEST):
            if isinstance(entry, Turn) and entry.turn_id == turn_id and now_ns - entry.ended_ns < _LATE_NS:
                return entry
        turn = history.open[turn_id] = Turn(turn_id=turn_id, trace=getattr(event, "trace", ""))
        history.trace = history.trace or turn.trace
        history.turns += 1
        history.ended_ns = 0  # it goes on, or the name is used again
        self._keep(history, turn, turn_id)
        return turn

    # Tools

    def _tool_asked(self, event: ev.ToolEnqueued, now_ns: int) -> None:
        call = self._call(event, now_ns)
        call.asked_ns = call.asked_ns or now_ns

    def _tool_started(self, event: ev.ToolStarted, now_ns: int) -> None:
        call = self._call(event, now_ns)
        call.started_ns = call.started_ns or now_ns

    def _tool_ended(self, event: ev.ToolEnded, now_ns: int) -> None:
        call, ended_ns = self._call(event, now_ns), now_ns - event.told_after_ns
        call.started_ns = call.started_ns or max(0, ended_ns - event.duration_ns)
        call.ended_ns, call.duration_ns, call.ok = ended_ns, event.duration_ns, event.ok
        history = self.histories[event.program_id]
        history.open.pop(_tool_key(event.call_id), None)
        for view in self.views:
            view.tool_ended(history, call, now_ns)

    def _call(self, event: ev.ToolEnqueued | ev.ToolStarted | ev.ToolEnded, now_ns: int) -> ToolCall:
        history, key = self._history(event.program_id, now_ns), _tool_key(event.call_id)
        call = history.open.get(key)
        if not isinstance(call, ToolCall):
            call = history.open[key] = ToolCall(tool=event.tool)
            self._keep(history, call, key)
        return call

    # Programs

    def _arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        history = self.histories.get(event.program_id)
        if history is not None:
            self._belongs_to(history, self._known_parent(event.program_id))

    def _program_ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        if event.for_now:
            return
        history = self.histories.get(event.program_id) or History(program_id=event.program_id, began_ns=now_ns)
        history.ended_ns = history.seen_ns = now_ns
        _end_pin(history, now_ns)
        for left in history.open.values():  # nobody will say how they ended
            left.ended_ns = now_ns
        for view in self.views:
            view.program_ended(history, now_ns)
        history.open.clear()
        history.awaited.clear()

    def _reclaimed(self, event: ev.PinReclaimed, now_ns: int) -> None:
        if (history := self.histories.get(event.program_id)) is not None:
            _end_pin(history, now_ns)

    def _rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        history = self.histories.get(event.program_id)
        for entry in reversed(history.entries) if history is not None else ():
            if isinstance(entry, Decided) and entry.number == event.command_id:
                entry.rejected = event.reason or "rejected"
                entry.until_ns = min(entry.until_ns, now_ns)
                if history is not None and entry in history.awaited:
                    history.awaited.remove(entry)
                    for view in self.views:
                        view.rejected(entry, event, now_ns)
                return

    def _history(self, program_id: str, now_ns: int) -> History:
        history = self.histories.get(program_id)
        if history is None:
            program = self.controller().ledger.programs.by_name.get(program_id)
            began_ns = program.arrived_at_ns if program is not None else now_ns
            history = self.histories[program_id] = History(program_id=program_id, began_ns=min(began_ns, now_ns))
            self._belongs_to(history, self._known_parent(program_id))
        history.seen_ns = max(history.seen_ns, now_ns)
        return history

    def _known_parent(self, program_id: str) -> str:
        program = self.controller().ledger.programs.by_name.get(program_id)
        return program.parent_id or program.sent_by if program is not None else ""

    def _belongs_to(self, history: History, parent_id: str) -> None:
        if parent_id and parent_id != history.parent_id:
            self._leave(history)
            history.parent_id = parent_id
            self.children.setdefault(parent_id, {})[history.program_id] = None

    def _leave(self, history: History) -> None:
        siblings = self.children.get(history.parent_id, {})
        siblings.pop(history.program_id, None)
        if not siblings:
            self.children.pop(history.parent_id, None)

    # How much is kept

    def _keep(self, history: History, entry: Entry, key: str = "") -> None:
        history.entries.append(entry)
        self._order.append((history, key))
        patience = _PATIENCE
        most = self._most + _OF_EACH * len(self.controller().ledger.programs.by_name)
        while len(self._order) > most:
            oldest, key = self._order.popleft()
            first = oldest.entries.popleft()
            is_open = oldest.open.get(key) is first or first in oldest.awaited
            if patience and is_open:
                patience -= 1
                oldest.entries.append(first)
                self._order.append((oldest, key))
                continue
            oldest.left_out += 1
            if is_open:
                oldest.open.pop(key, None)
                oldest.awaited = [each for each in oldest.awaited if each is not first]
            if not oldest.entries:
                self._leave(oldest)
                del self.histories[oldest.program_id]


def _tool_key(call_id: str) -> str:
    """Turns and tools are named by different people."""
    return f"tool:{call_id}"


def _end_pin(history: History, now_ns: int) -> None:
    if history.pin is not None:
        history.pin.until_ns = min(history.pin.until_ns, now_ns)
        history.pin = None
