"""What the ledger holds: plain records that a snapshot writes down, and the sums over them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.core import events as ev
from controlplane.core.estimate import Estimates
from controlplane.core.numbering import Numbering
from controlplane.core.sequence import Sequence
from controlplane.core.sharing import Prefilled
from controlplane.core.types import Program, Status, Tier


@dataclass(slots=True, kw_only=True)
class Held:
    """A turn that the gate holds."""

    program_id: str
    publisher: str
    blocks: int


@dataclass(slots=True, kw_only=True)
class Running:
    """A turn that an engine holds."""

    program_id: str
    publisher: str
    blocks: int = 0  # that it was projected to need
    prefilled: Prefilled | None = None  # None: its first token has yet to come, or nobody timed it


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """A tool call that is enqueued or runs."""

    program_id: str
    call_id: str
    publisher: str
    tool: str
    started: bool
    enqueued_at_ns: int = 0  # 0: it started at once
    may_start: bool = False  # it waited for a slot of the host, and was told that it has one
    delegates: bool = False  # it waits for a child program: no load of the host

    @property
    def has_slot(self) -> bool:
        """Whether it takes a slot of the host, or will at once."""
        return self.started or self.may_start


@dataclass(slots=True, kw_only=True)
class Environment:
    """What a program's tools will need, and whether its making was asked for."""

    publisher: str
    asked: bool = False


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
    commands: Numbering = field(default_factory=Numbering)
    farewells: dict[str, Farewell] = field(default_factory=dict)  # ended holding a slot; nobody was told yet
    overheld: dict[str, None] = field(default_factory=dict)  # a gate missed that their slot was taken back
    sequences: dict[str, Sequence] = field(default_factory=dict)  # by publisher
    retractions: dict[str, int] = field(default_factory=dict)  # by publisher: the last total it reported
    early_ends: dict[str, int] = field(default_factory=dict)  # ids whose end came first, and when
    replies: dict[str, ev.ReplyRead] = field(default_factory=dict)  # by turn_id, of turns that have not ended yet
    moving: dict[int, Tier] = field(default_factory=dict)  # by command_id: where its KV will be once it is applied
    queue: dict[str, None] = field(default_factory=dict)  # waiting roots, in the order in which they began to
    # What the next tick has to look at; kept here because a snapshot may be taken before that tick.
    askers: dict[str, None] = field(default_factory=dict)  # roots that hold a slot and have held turns
    tool_queue: dict[str, None] = field(default_factory=dict)  # keys of calls that wait for a slot of the host
    environments: dict[str, Environment] = field(default_factory=dict)  # wanted, by program, until it is let in
    changed: dict[str, None] = field(default_factory=dict)  # programs that began to act, or to wait for a child
    resync: dict[str, int] = field(default_factory=dict)  # publishers whose state is needed: times asked
    unasked: dict[str, None] = field(default_factory=dict)  # roots that hold a slot which nobody granted
    active_changes: int = 0  # counts who came and went
    ordered_held: dict[str, None] = field(default_factory=dict)  # roots that an operator holds
    draining: bool = False  # an operator wants nobody to be let in
    parts: dict[str, list[ev.PublisherState]] = field(default_factory=dict)  # by publisher, of an unfinished state
    untold: dict[str, None] = field(default_factory=dict)  # children that a gate has to be told of
    gated: bool = False  # the last turn without a grant was held at a gate, and did not just run
    estimates: Estimates = field(default_factory=Estimates)
    signals: Signals = field(default_factory=Signals)
    counts: Counts = field(default_factory=Counts)
    pools: dict[str, ev.PoolSampled] = field(default_factory=dict)  # by place of the engine: its latest
    host: ev.HostSampled | None = None
    engine_idle_since_ns: int = 0  # 0 while a turn runs


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the records."""

    demand_blocks: int = 0  # charges of active programs, without the prefix that they share
    charged: int = 0  # programs that are charged
    lent_blocks: int = 0  # of active programs that lend their room, which are not
    active_roots: int = 0
    queued_blocks: int = 0
    tools_active: int = 0
    tools_waiting: int = 0
    # By place of the engine, where there are several: the charges of the active programs that ran there last, and
    # the turns that it holds.
    several: bool = False
    placed_blocks: Counter[str] = field(default_factory=Counter)
    placed: Counter[str] = field(default_factory=Counter)
    placed_lent_blocks: Counter[str] = field(default_factory=Counter)
    open_blocks: Counter[str] = field(default_factory=Counter)
    open_turns: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, state: LedgerState, *, several: bool | None = None) -> "Totals":
        """Recomputed from the records; by place, too, where there are ``several`` engines."""
        placed = [call for call in state.tools.values() if call.has_slot]
        totals = cls(
            queued_blocks=sum(p.queued_blocks for p in waiting_roots(state.programs.values())),
            tools_active=sum(not call.delegates for call in placed),
            tools_waiting=len(state.tools) - len(placed),
            several=len(state.pools) > 1 if several is None else several,
        )
        for program in state.programs.values():
            if program.status is Status.ACTIVE:
                totals.count(program, 1)
        for turn in state.running.values() if totals.several else ():
            totals.count_turn(turn, 1)
        return totals

    def count(self, program: Program, by: int) -> None:
        """Add ``by`` active programs like this one."""
        self.active_roots += by * (not program.parent_id)
        self.charged += by * (not program.lends)
        if self.several:
            self.placed[program.replica] += by * (not program.lends)
        self.charge(program, by * (program.kv_blocks - program.shared_blocks))

    def charge(self, program: Program, blocks: int) -> None:
        """Add to what an active program takes beside the shared prefix."""
        if program.lends:
            self.lent_blocks += blocks
            if self.several:
                self.placed_lent_blocks[program.replica] += blocks
            return
        self.demand_blocks += blocks
        if self.several:
            self.placed_blocks[program.replica] += blocks

    def count_turn(self, turn: Running, by: int) -> None:
        """Add ``by`` turns like this one. There are several engines."""
        place = ev.place_of(turn.publisher)
        self.open_turns[place] += by
        self.open_blocks[place] += by * turn.blocks


def whole(pools: Mapping[str, ev.PoolSampled]) -> ev.PoolSampled | None:
    """What all engines have together; None before the first sample. Their blocks are taken to be of one size."""
    samples = list(pools.values())
    if len(samples) < 2:
        return samples[0] if samples else None
    return ev.PoolSampled(
        total_blocks=sum(each.total_blocks for each in samples),
        free_blocks=sum(each.free_blocks for each in samples),
        evictable_blocks=sum(each.evictable_blocks for each in samples),
        retained_blocks=sum(each.retained_blocks for each in samples),
        block_tokens=samples[0].block_tokens,
        turns_running=sum(each.turns_running for each in samples),
        turns_waiting=sum(each.turns_waiting for each in samples),
        host_total_blocks=sum(each.host_total_blocks for each in samples),
        host_used_blocks=sum(each.host_used_blocks for each in samples),
    )


def waiting_roots(programs: Iterable[Program]) -> list[Program]:
    """Root programs that wait for a slot with at least one held turn."""
    return [p for p in programs if p.status is Status.WAITING and p.queued_turns and not p.parent_id]


def tool_key(program_id: str, call_id: str) -> str:
    """What a tool call is known by: agents count their calls, so "call_1" is many a program's."""
    return f"{program_id}\n{call_id}"
