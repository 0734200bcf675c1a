"""The records that policies read: programs, queued programs and pressure.

Time is an integer count of nanoseconds that the caller passes in as ``now_ns``; this room reads no clock.
Sizes are in KV blocks (the allocator's page) or tokens, and every name ends in its unit.

**Paper**: MARS §4.1 (blocks are the allocator's native unit); ThunderAgent §4.1 (the program record).
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import log2

from controlplane.core.model.hints import NO_HINTS, Hints

MOST_LEASE_S = 600  # that a daemon may claim: in its configuration, at a gate and in an engine
MOST_NAME = 256
"""Characters of a name: what is listed, logged and remembered must have an end."""
FEWEST_TO_JUDGE = 5
"""Programs, or verdicts, below which nobody is told a conclusion: so few say what happened, and not what will."""
NANOSECONDS_PER_SECOND = 1_000_000_000


def seconds(value: float) -> int:
    """Seconds as nanoseconds, rounded to the nearest."""
    return round(value * NANOSECONDS_PER_SECOND)


class Status(StrEnum):
    """Where a program stands with the admission window (one of the two dimensions of its state).

    The other dimension, reasoning or acting, is ``open_turns`` and ``open_tools``: turns may overlap, and
    a program may be paused while its tool runs.
    """

    WAITING = "waiting"
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Tier(StrEnum):
    """Where a program's KV cache lives, as far as the control plane was told."""

    HBM = "hbm"
    HOST = "host"
    NONE = "none"


@lru_cache(maxsize=4096)
def class_of(tenant: str, agent: str, first_tokens: float) -> str:
    """The class of a program by what is known when it comes: a tenant's agent, a half-octave of first prompts."""
    size = int(2 * log2(first_tokens)) if first_tokens >= 1 else 0
    return f"{tenant}/{agent}/{size}"


@dataclass(slots=True, kw_only=True)
class Program:
    """One agent session. Only the ledger writes it: whoever decides by it leaves it as it is."""

    program_id: str
    tenant: str = ""
    account: str = ""  # whom a gate vouches for: a key's digest or a name; empty: nobody
    payer: str = "default"  # the tenant that its memory is charged to: ``tenants.Tenancy``
    agent: str = ""  # which kind of agent it is: a name or a digest; empty where nothing tells
    parent_id: str = ""
    root_id: str = ""  # itself for a root; only roots hold slots
    group: str = ""  # of rollouts that begin with the same prompt: its name in the ledger; empty: none
    group_blocks: int = 0  # of the prompt that its group shares; 0: none has been computed yet
    sent_by: str = ""  # whose sub-agent it is, where those have slots of their own
    had_children: bool = False  # of a root: some may be forgotten by now
    status: Status = Status.WAITING
    arrived_at_ns: int = 0
    queued_at_ns: int = 0  # since when it wants a slot; 0: it does not
    asked: Hints | None = None  # what its client has asked for last; None: nothing
    entered_by: Hints | None = None  # likewise, when it got its slot
    promised_ns: int = 0  # that it will wait from then on, as it was forecast when it came; 0: it was not
    urgent_at_ns: int = 0  # when its deadline is near; 0: it has none
    queued_turns: int = 0
    queued_blocks: int = 0  # the estimate for the turns it waits with
    turn_index: int = 0  # turns ended
    open_turns: int = 0  # turns that the engine holds
    open_tools: int = 0
    idle_since_ns: int = 0  # when the last open turn or tool ended; 0 while one is open
    last_turn_id: str = ""  # that ended
    last_turn_ns: int = 0  # for which it reasoned last
    turn_over_ns: int = 0  # when its last turn was over, or began if it is open, by its engine's own clock
    gap_since_ns: int = 0  # when its last open turn ended; 0 while it has one, or waits for one
    gap_tool: str = ""  # what is known to run in this gap: by the reply, or by the tool's own report
    gap_has_tool: bool = False  # an emitter reported a tool since the last turn ended
    gap_delegates: bool = False  # of those one waited for a child
    gap_unanswered: bool = False  # the turn before it failed or was left: its client asks again, or gives up
    called_nothing: bool = False  # the last reply called no tool
    lends: bool = False  # it holds its slot, and is likely to be away for long: others may have its room
    keep_ratio: float = -1.0  # what keeping its context brings over what it costs; below 0: not weighed in this gap
    weighed_at_ns: int = 0
    ended_by_word: bool = False  # it said goodbye, or its agent did
    frees: bool = False  # once it has ended nobody asks for its context again
    ended_at_ns: int = 0
    rests: bool = False  # it has ended for now: who asked it may go on in a while
    silenced: bool = False  # silence alone says that it has ended
    learned_turns: int = 0  # that its end was learned with, should it come back; 0 while it has not ended
    expected_tokens: int = 0  # what its longest context was expected to be when it was first let in
    warm: bool = False  # it kept its slot since its last turn ended
    context_tokens: int = 0  # the last prompt and its output
    prompt_tokens: int = 0  # the last prompt
    prompts: tuple[tuple[str, int], ...] = ()  # the tokens of the prompts before it, by turn: a few
    first_tokens: int = 0  # its first prompt
    peak_tokens: int = 0  # its longest context
    kv_blocks: int = 0  # what it is charged with while it holds a slot
    shared_blocks: int = 0  # of those: the prefix that programs share, as far as it is that long
    kv_tier: Tier = Tier.NONE
    service_ns: int = 0  # accumulated time in the engine
    cycles: tuple[int, ...] = ()  # its last times of reasoning and acting: see ``idleness``
    phase_since_ns: int = 0  # since when it reasons (a turn is open) or acts; 0: it is held, or unknown
    tool: str = ""
    tool_started_at_ns: int = 0
    delegating: int = 0  # of its open tools: those that wait for a child program
    back_at_ns: int = 0  # when the last child that it waits for is expected to have ended; 0: it waits for none
    retained_until_ns: int = 0
    emptied: bool = False  # its engine's cache was emptied, and no turn of it has run there since
    replica: str = ""  # the engine that ran its last turn, or its next one will run on: ``node/role``; empty: none
    moves: int = 0  # how often it went from one engine to another
    gate: str = ""  # the one that held its last held turn: ``node/role``
    placed: str = ""  # the engine that its gate was told of last
    placed_turn: int = -1  # the turn, by ``turn_index``, that it was placed for at the end of the one before
    last_seen_ns: int = 0
    metered_at_ns: int = 0  # up to when what it held is charged; 0: never
    # Of a root, with its children: ``ledger.accounts``.
    kv_token_s: float = 0.0  # KV tokens x seconds that they have held
    pledged_token_s: float = 0.0  # that they are expected to hold yet
    turns_begun: int = 0
    budget_turns: int = 0  # that its client allows the run; 0: none was said
    budget_kv_token_s: int = 0  # likewise
    quarantined: bool = False  # an event about it made no sense: no decision is made from its figures
    accused: str = ""  # the publisher of that event, whose state will clear it

    @property
    def hints(self) -> Hints:
        """What its client has asked for last."""
        return self.asked or NO_HINTS

    @property
    def class_key(self) -> str:
        """Its class, by what was known when it came; empty before its first turn has ended."""
        return class_of(self.tenant, self.agent, self.first_tokens) if self.first_tokens else ""

    @property
    def needed_blocks(self) -> int:
        """Of those that it waits with: what its group does not hold."""
        return max(1, self.queued_blocks - self.group_blocks)

    @property
    def may_end(self) -> bool:
        """Whether its last turn may have been its last: a title request may end beside the turn that matters.

        Asked whenever it counts, not when the reply was read: a turn that died with its engine was open then.
        """
        return self.called_nothing and not (self.open_turns or self.open_tools or self.gap_has_tool)


Left = tuple[float, float]
"""What a program is expected to hold to its end, in blocks x lifetimes, and for how many lifetimes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedProgram:
    """A root program that waits for a slot, with what packing needs to order it."""

    program_id: str
    blocks: int  # EstimateBlocks of its held turns, its children's included
    arrived_at_ns: int
    queued_at_ns: int
    turn_index: int = 0  # turns ended; 0: it is new
    urgent_at_ns: int = 0  # when it goes before the others, as it has a deadline; 0: it has none
    kv_tier: Tier = Tier.NONE
    cycles: tuple[int, ...] = ()
    phase_since_ns: int = 0
    open_turns: int = 0
    left: float = 0.0  # blocks x lifetimes: what it is expected to hold to its end; 0 where packing does not ask
    lifetimes: float = 0.0  # and for how long
    group: str = ""  # of rollouts

    @classmethod
    def of(cls, program: Program, left: float = 0.0, lifetimes: float = 0.0) -> "QueuedProgram":
        return cls(
            program_id=program.program_id,
            blocks=program.needed_blocks,
            arrived_at_ns=program.arrived_at_ns,
            queued_at_ns=program.queued_at_ns,
            turn_index=program.turn_index,
            urgent_at_ns=program.urgent_at_ns,
            kv_tier=program.kv_tier,
            cycles=program.cycles,
            phase_since_ns=program.phase_since_ns,
            open_turns=program.open_turns,
            left=left,
            lifetimes=lifetimes,
            group=program.group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine of several: its latest sample, and what the events since say is placed on it."""

    name: str
    total_blocks: int = 0
    free_blocks: int = 0
    evictable_blocks: int = 0
    retained_blocks: int = 0
    host_total_blocks: int = 0
    host_used_blocks: int = 0
    demand_blocks: int = 0  # of the active programs that ran there last, a shared prefix once
    turns: int = 0  # that it holds: they wait or run
    turn_blocks: int = 0  # that those are projected to need
    draining: bool = False  # no program is placed there any more

    @property
    def room_blocks(self) -> int:
        """What its programs leave of its pool; negative where they ask for more than there is."""
        return self.total_blocks - self.demand_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Both sides of the machine at one instant. Ratios are 0..1 unless said; -1 blocks means not known."""

    observed_at_ns: int = 0
    interval_ends_ns: int = 0  # of the control interval that lasts: what a policy does once in each goes by it
    kv_total_blocks: int = 0  # 0: no pool sample yet
    kv_free_blocks: int = 0
    kv_evictable_blocks: int = 0
    kv_retained_blocks: int = 0
    kv_demand_blocks: int = 0  # D: what the active programs need resident
    kv_lent_blocks: int = 0  # what programs hold that lend their room: no part of D
    kv_use_ratio: float = 0.0  # u = D / total; may pass 1
    kv_forecast_blocks: tuple[int, ...] = ()  # what the active programs will need: ``demand_curve``
    running_blocks: int = 0  # of the programs that the engine has a turn of
    host_total_blocks: int = 0
    host_used_blocks: int = 0
    tools_active: int = 0
    tools_waiting: int = 0
    tool_wait_s: float = 0.0  # moving average of the time from a tool's being asked for to its start
    tools_per_program: float = 0.0  # f: moving average of tools per active program
    tool_slowdown_ratio: float = 1.0  # r: moving average of duration over that tool's median
    cpus: float = 0.0  # C: CPUs this host may use; 0: not known
    cpu_use_ratio: float = 0.0
    cpu_stall_ratio: float = 0.0  # PSI, share of time some task waited for a CPU
    programs_active: int = 0  # roots that hold a slot
    window_limit: int = 0  # how many may, as was decided last; 0: any number
    queue_length: int = 0  # roots that wait for one
    queued_blocks_mean: float = 0.0
    cpu_overloaded: bool = False
    kv_overloaded: bool = False
    kv_has_slack: bool = True
    replicas: tuple[Replica, ...] = ()  # each engine's part, sorted by name; () where one is all
