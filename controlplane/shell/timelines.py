"""What programs did lately and what was decided about them: from this each program's time line is drawn.

The latest turns, tool calls, decisions and verdicts are kept, of all programs together so many at most; the oldest
goes first, whoever's it is. What is still open is kept longer: of who waits one wants to know since when. All is
noted behind the decision, and put together only when somebody looks (``timeline``); an event costs a few
microseconds (``bench/timeline_cost.py``). The decision log on disk has older decisions.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.events import place_of
from controlplane.core.regret import Verdict
from controlplane.core.types import seconds
from controlplane.wire.names import snake_case

MOST_ENTRIES = 40_000  # about 20 MB, or 30 where each is of another program
_PATIENCE = 8  # entries in a row that are kept as they are open
_LATE_NS = seconds(5)  # gates and engines tell of a turn on connections of their own
_LATEST = 8  # entries among which a turn is looked for that has just ended


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A model call. Times are the daemon's, when it heard of each; 0: that did not happen, or was not heard of."""

    turn_id: str
    engine: str = ""  # its place, `node/role`
    queued_ns: int = 0  # a gate began to hold it
    submitted_ns: int = 0  # the engine took it into its own queue
    launch_delay_ns: int = 0  # for which it waited there
    first_token_ns: int = 0
    ended_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, what was found
    output_tokens: int = 0
    end: str = ""  # why no whole reply came: `aborted`, or why it left the gate

    @property
    def began_ns(self) -> int:
        """When it was first heard of."""
        return self.queued_ns or self.submitted_ns or self.first_token_ns or self.ended_ns


@dataclass(slots=True, kw_only=True, eq=False)
class ToolCall:
    """A tool's call. Times as of a turn."""

    tool: str
    asked_ns: int = 0  # it waits until the host has room for it
    started_ns: int = 0
    ended_ns: int = 0
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
class Past:
    """What is kept of one program, the oldest entry in front."""

    program_id: str
    began_ns: int
    parent_id: str = ""
    seen_ns: int = 0
    ended_ns: int = 0  # 0: it has not
    turns: int = 0  # that were heard of
    left_out: int = 0  # entries that made room for others
    entries: deque[Entry] = field(default_factory=deque)
    open: dict[str, Turn | ToolCall] = field(default_factory=dict)
    pin: Decided | None = None

    def tool_key(self, call_id: str) -> str:
        """Turns and tools are named by different people."""
        return f"tool:{call_id}"


class Timelines:
    """A recorder of what happens; ``verdict`` hears what came of each decision."""

    def __init__(self, controller: Callable[[], Controller], most: int = MOST_ENTRIES) -> None:
        self.controller = controller
        self.pasts: dict[str, Past] = {}
        self.children: dict[str, dict[str, None]] = {}  # by parent
        self._most = most
        self._order: deque[tuple[Past, str]] = deque()  # whose entries, and their keys in ``open``
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
        if (take := self._takes.get(type(event))) is not None:
            take(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """Nothing: the commands say it all."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: decisions say why they were made."""

    def command(self, command: cmd.Command, now_ns: int) -> None:
        """Something was decided."""
        if not isinstance(command, cmd.ProgramCommand):
            return
        past = self._past(command.program_id, now_ns)
        decided = Decided(
            at_ns=now_ns, number=command.command_id, kind=snake_case(type(command)), reason=command.reason
        )
        if isinstance(command, cmd.Retain | cmd.Release | cmd.Demote | cmd.Discard):
            _end_pin(past, now_ns)
        if isinstance(command, cmd.Retain):
            decided.until_ns = now_ns + command.ttl_ns
            past.pin = decided
        elif isinstance(command, cmd.Place):
            decided.engine = command.replica
        elif isinstance(command, cmd.Adopt):
            self._belongs_to(past, command.parent_id)
        self._keep(past, decided)

    def verdict(self, verdict: Verdict) -> None:
        """It is known what came of something."""
        self._keep(self._past(verdict.program_id, verdict.closed_ns), verdict)

    # Turns

    def _queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        if not turn.ended_ns:  # it is asked for again while it is held
            turn.queued_ns = turn.queued_ns or now_ns

    def _submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.engine = place_of(event.publisher)
        if not turn.ended_ns:
            turn.submitted_ns = now_ns
            _end_pin(self.pasts[event.program_id], now_ns)  # the running turn holds the context by itself

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.launch_delay_ns = event.launch_delay_ns
        turn.prompt_tokens, turn.cached_tokens = event.prompt_tokens, event.cached_tokens
        if not turn.ended_ns:
            turn.first_token_ns = now_ns

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        turn = self._turn(event, now_ns)
        turn.ended_ns = turn.ended_ns or now_ns
        turn.prompt_tokens = event.prompt_tokens or turn.prompt_tokens
        turn.cached_tokens = event.cached_tokens or turn.cached_tokens
        turn.output_tokens = event.output_tokens
        turn.end = "" if event.ok else "aborted"
        self.pasts[event.program_id].open.pop(event.turn_id, None)

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        past = self._past(event.program_id, now_ns)
        turn = past.open.pop(event.turn_id, None)
        if isinstance(turn, Turn):
            turn.ended_ns, turn.end = now_ns, event.reason or "abandoned"

    def _turn(self, event: Any, now_ns: int) -> Turn:
        """The event's turn; one that has just ended, where word of it is late; else a new one."""
        past, turn_id = self._past(event.program_id, now_ns), event.turn_id
        turn = past.open.get(turn_id)
        if isinstance(turn, Turn):
            return turn
        for entry in islice(reversed(past.entries), _LATEST):
            if isinstance(entry, Turn) and entry.turn_id == turn_id and now_ns - entry.ended_ns < _LATE_NS:
                return entry
        turn = past.open[turn_id] = Turn(turn_id=turn_id)
        past.turns += 1
        past.ended_ns = 0  # it goes on, or the name is used again
        self._keep(past, turn, turn_id)
        return turn

    # Tools

    def _tool_asked(self, event: ev.ToolEnqueued, now_ns: int) -> None:
        call = self._call(event, now_ns)
        call.asked_ns = call.asked_ns or now_ns

    def _tool_started(self, event: ev.ToolStarted, now_ns: int) -> None:
        call = self._call(event, now_ns)
        call.started_ns = call.started_ns or now_ns

    def _tool_ended(self, event: ev.ToolEnded, now_ns: int) -> None:
        call = self._call(event, now_ns)
        call.started_ns = call.started_ns or now_ns - event.duration_ns
        call.ended_ns, call.ok = now_ns, event.ok
        past = self.pasts[event.program_id]
        past.open.pop(past.tool_key(event.call_id), None)

    def _call(self, event: ev.ToolEnqueued | ev.ToolStarted | ev.ToolEnded, now_ns: int) -> ToolCall:
        past = self._past(event.program_id, now_ns)
        key = past.tool_key(event.call_id)
        call = past.open.get(key)
        if not isinstance(call, ToolCall):
            call = past.open[key] = ToolCall(tool=event.tool)
            self._keep(past, call, key)
        return call

    # Programs

    def _arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        past = self.pasts.get(event.program_id)
        if past is not None:
            self._belongs_to(past, self._known_parent(event.program_id))

    def _program_ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        past = self.pasts.get(event.program_id)
        if past is None or event.for_now:
            return
        past.ended_ns = past.seen_ns = now_ns
        _end_pin(past, now_ns)
        for left in past.open.values():  # nobody will say how they ended
            left.ended_ns = now_ns
        past.open.clear()

    def _reclaimed(self, event: ev.PinReclaimed, now_ns: int) -> None:
        if (past := self.pasts.get(event.program_id)) is not None:
            _end_pin(past, now_ns)

    def _rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        past = self.pasts.get(event.program_id)
        for entry in reversed(past.entries) if past is not None else ():
            if isinstance(entry, Decided) and entry.number == event.command_id:
                entry.rejected = event.reason or "rejected"
                entry.until_ns = min(entry.until_ns, now_ns)
                return

    def _past(self, program_id: str, now_ns: int) -> Past:
        past = self.pasts.get(program_id)
        if past is None:
            program = self.controller().ledger.programs.by_name.get(program_id)
            began_ns = program.arrived_at_ns if program is not None else now_ns
            past = self.pasts[program_id] = Past(program_id=program_id, began_ns=min(began_ns, now_ns))
            if program is not None:
                self._belongs_to(past, program.parent_id)
        past.seen_ns = max(past.seen_ns, now_ns)
        return past

    def _known_parent(self, program_id: str) -> str:
        program = self.controller().ledger.programs.by_name.get(program_id)
        return program.parent_id if program is not None else ""

    def _belongs_to(self, past: Past, parent_id: str) -> None:
        if parent_id and parent_id != past.parent_id:
            self._leave(past)
            past.parent_id = parent_id
            self.children.setdefault(parent_id, {})[past.program_id] = None

    def _leave(self, past: Past) -> None:
        siblings = self.children.get(past.parent_id, {})
        siblings.pop(past.program_id, None)
        if not siblings:
            self.children.pop(past.parent_id, None)

    # How much is kept

    def _keep(self, past: Past, entry: Entry, key: str = "") -> None:
        past.entries.append(entry)
        self._order.append((past, key))
        patience = _PATIENCE
        while len(self._order) > self._most:
            oldest, key = self._order.popleft()
            first = oldest.entries.popleft()
            is_open = oldest.open.get(key) is first
            if patience and is_open:
                patience -= 1
                oldest.entries.append(first)
                self._order.append((oldest, key))
                continue
            oldest.left_out += 1
            if is_open:
                del oldest.open[key]
            if not oldest.entries:
                self._leave(oldest)
                del self.pasts[oldest.program_id]


def _end_pin(past: Past, now_ns: int) -> None:
    if past.pin is not None:
        past.pin.until_ns = min(past.pin.until_ns, now_ns)
        past.pin = None
