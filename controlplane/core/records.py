"""What the ledger holds: plain records that a snapshot writes down, and the sums over them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.core import events as ev
from controlplane.core.estimate import Estimates
from controlplane.core.sequence import Sequence
from controlplane.core.types import Program, Status, Tier


@dataclass(slots=True, kw_only=True)
class Held:
    """A turn that the gate holds."""

    program_id: str
    publisher: str
    blocks: int


@dataclass(slots=True, kw_only=True)
class Running:
    """A turn that the engine holds."""

    program_id: str
    publisher: str


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """A tool call that is enqueued or runs."""

    program_id: str
    publisher: str
    tool: str
    started: bool


@dataclass(slots=True, kw_only=True)
class Farewell:
    """A program that ended while gate and engine hold something for it."""

    reason: str
    pinned: bool


@dataclass(slots=True, kw_only=True)
class Signals:
    """What one control interval saw of thrashing."""

    retractions: int = 0
    cold_returns: int = 0


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was not applied as it came, for metrics and the log."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    contradictions: int = 0  # RemoteEventError
    late: int = 0  # an end or start that arrived on the wrong side of its partner
    commands_applied: int = 0
    commands_rejected: int = 0
    admitted_unasked: int = 0  # turns that reached the engine without a grant
    taken_back: int = 0  # slots that nobody granted, taken back at a turn's end


@dataclass(slots=True, kw_only=True)
class LedgerState:
    """Everything that a snapshot must hold."""

    programs: dict[str, Program] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)  # by turn_id
    running: dict[str, Running] = field(default_factory=dict)  # by turn_id
    tools: dict[str, ToolCall] = field(default_factory=dict)  # by ``tool_key``: call ids are a program's own
    retired: dict[str, None] = field(default_factory=dict)  # boots that another replaced, the latest last
    farewells: dict[str, Farewell] = field(default_factory=dict)  # ended holding a slot; nobody was told yet
    sequences: dict[str, Sequence] = field(default_factory=dict)  # by publisher
    retractions: dict[str, int] = field(default_factory=dict)  # by publisher: the last total it reported
    early_ends: dict[str, int] = field(default_factory=dict)  # ids whose end came first, and when
    replies: dict[str, ev.ReplyRead] = field(default_factory=dict)  # by turn_id, of turns that have not ended yet
    moving: dict[int, Tier] = field(default_factory=dict)  # by command_id: where its KV will be once it is applied
    queue: dict[str, None] = field(default_factory=dict)  # waiting roots, in the order in which they began to
    # What the next tick has to look at; kept here because a snapshot may be taken before that tick.
    askers: dict[str, None] = field(default_factory=dict)  # roots that hold a slot and have held turns
    changed: dict[str, None] = field(default_factory=dict)  # programs that began to act
    resync: dict[str, int] = field(default_factory=dict)  # publishers whose state is needed: times asked
    unasked: dict[str, None] = field(default_factory=dict)  # roots that hold a slot which nobody granted
    active_changes: int = 0  # counts who came and went
    gated: bool = False  # the last turn without a grant was held at a gate, and did not just run
    estimates: Estimates = field(default_factory=Estimates)
    signals: Signals = field(default_factory=Signals)
    counts: Counts = field(default_factory=Counts)
    pool: ev.PoolSampled | None = None
    host: ev.HostSampled | None = None
    engine_idle_since_ns: int = 0  # 0 while a turn runs


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the records."""

    demand_blocks: int = 0  # charges of active programs, shared prefixes counted each time
    charged: int = 0  # programs that are charged
    active_roots: int = 0
    queued_blocks: int = 0
    tools_active: int = 0
    tools_waiting: int = 0

    @classmethod
    def of(cls, state: LedgerState) -> "Totals":
        """Recomputed from the records."""
        active = [p for p in state.programs.values() if p.status is Status.ACTIVE]
        started = sum(call.started for call in state.tools.values())
        return cls(
            demand_blocks=sum(p.kv_blocks for p in active),
            charged=len(active),
            active_roots=sum(not p.parent_id for p in active),
            queued_blocks=sum(p.queued_blocks for p in waiting_roots(state.programs.values())),
            tools_active=started,
            tools_waiting=len(state.tools) - started,
        )


def waiting_roots(programs: Iterable[Program]) -> list[Program]:
    """Root programs that wait for a slot with at least one held turn."""
    return [p for p in programs if p.status is Status.WAITING and p.queued_turns and not p.parent_id]


def tool_key(program_id: str, call_id: str) -> str:
    """What a tool call is known by: agents count their calls, so "call_1" is many a program's."""
    return f"{program_id}\n{call_id}"
