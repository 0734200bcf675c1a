"""What happened: events as publishers report them (MARS §4.1, Table 1).

``publisher`` is ``node/role/boot`` and ``sequence`` counts that publisher's events from 1, so that duplicates
are harmless and gaps are seen. ``at_ns`` is the publisher's own monotonic clock: good for durations within one
publisher, never compared across two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from controlplane.core.model.places import kind_of, place_of, server_of, stands_before

PREFILL, DECODE = "prefill", "decode"
"""An engine's side of disaggregated prefill; see ``PoolSampled.disaggregation``."""
DECODES = "it decodes what prefill engines hand over: it is counted, and nothing is decided for it"
"""Why a decode engine obeys nothing; see ``PoolSampled.reason``."""
NO_PLUGIN = "it has no plugin: it is given turns, and keeps, orders and evicts contexts as it likes"
BY_API = "it has no plugin: its own API has it keep contexts, and it orders and evicts as it likes"
PLUGINLESS = frozenset({NO_PLUGIN, BY_API})
"""What is told of engines by others: no plugin in them says so."""
"""Why an engine obeys nothing of which others tell; see ``PoolSampled.reason``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event carries."""

    publisher: str = ""
    sequence: int = 0
    at_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEvent(Event):
    """An event about one program."""

    program_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramArrived(ProgramEvent):
    """A run of an agent began. Optional: a program is also known by its first turn.

    ``aside``: no tool of its parent waits for it, as none does for the request for a title.
    """

    tenant: str = ""
    parent_id: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(ProgramEvent):
    """The gate holds a turn and asks for a slot. Sent again while held: a retry keeps its place.

    What it says of the prompt's size is a ``PromptSize``, field by field.
    """

    turn_id: str
    prompt_bytes: int = 0  # of text
    prompt_tokens: int = 0  # where the prompt came as token ids
    model: str = ""
    continues: str = ""  # an earlier turn of the program, with whose prompt this one begins
    shared_ratio: float = 0.0  # how much of that prompt it begins with
    new_bytes: int = 0  # of text behind that
    image_tokens: int = 0  # of images behind that, as their forms suggest; likewise the next three
    audio_tokens: int = 0
    video_tokens: int = 0
    file_tokens: int = 0
    parent_id: str = ""
    tenant: str = ""
    agent: str = ""  # which kind of agent asks: its name, or a digest of its tools and instructions
    trace: str = ""  # the client's span, as W3C's ``traceparent`` has it: the turn's spans join it
    account: str = ""  # whom the gate vouches for: a key's digest, or a header's name that it believes
    budget_turns: int = 0  # that the client allows the run with its children; 0: no such budget
    budget_kv_token_s: int = 0  # likewise, in KV tokens x seconds
    timeout_ns: int = 0  # for which it can wait from now, if the run has not begun; 0: nobody said
    group_id: str = ""  # of the rollouts that begin with this prompt
    group_size: int = 0  # how many they are; 0: it is of no group


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHinted(ProgramEvent):
    """What the client asks for with a turn, before the turn is held or let in; field by field a ``Hints``.

    It holds for the program until the next one. A gate tells of what has changed only, and of each ``move``.
    """

    turn_id: str
    service_tier: str = ""
    objective: str = ""
    tier_by: str = ""
    output_tokens: int = 0
    retain_least_ns: int = 0
    retain_most_ns: int = 0
    retain_by: str = ""
    move: str = ""
    move_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAbandoned(ProgramEvent):
    """A turn left the gate without running: its client went, its deadline passed, or the engine refused it."""

    turn_id: str
    reason: str = ""


REFUSALS = (
    "queue_full",
    "overloaded",
    "expected_wait",
    "hold_deadline",
    "budget_spent",
    "draining",
    "gate_closed",
    "client_left",
    "unserved",
)
"""Why a turn left the gate unserved: as its client was told; it went by itself; or the engine did not take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsRefused(Event):
    """Turns that left the gate unserved since it last told of them, by one of ``REFUSALS``.

    Those that it did not hold are in no other event.
    """

    code: str
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSubmitted(ProgramEvent):
    """gpu_submit: the engine took the turn into its own queue.

    ``continues``: the earlier turn with whose prompt a gate has compared this one; empty: none has. ``change`` is a
    ``Cause`` of the client's, empty where the prompt goes on from that one; ``change_at`` the place.
    """

    turn_id: str
    projected_blocks: int
    prompt_tokens: int = 0
    prompt_bytes: int = 0  # of text, where who submits has seen it: no engine has
    trace: str = ""  # as of ``TurnQueued``, which a turn that passes at once does not have
    client: str = ""  # who asks: name and version
    continues: str = ""
    kept_ratio: float = 0.0  # how much of that prompt this one begins with
    change: str = ""
    change_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(ProgramEvent):
    """gpu_first_token. ``launch_delay_ns`` runs from submit to the first scheduled prefill."""

    turn_id: str
    launch_delay_ns: int = 0
    prefill_ns: int = 0  # from the first scheduled prefill to the first token
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0  # of the cached ones, from below the device


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPrefilled(ProgramEvent):
    """A prefill engine has handed a turn over, which another engine decodes: its blocks here are released.

    ``handoff``: by what both engines know what is handed over. With ``TurnDecoded`` it makes the turn's
    ``TurnEnded``, whose figures these are.
    """

    turn_id: str
    handoff: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    service_ns: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecoded(Event):
    """A decode engine's end of a turn that another engine has prefilled. It knows neither program nor turn."""

    handoff: str
    output_tokens: int = 0
    service_ns: int = 0
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(ProgramEvent):
    """gpu_end: blocks are released and the reply is complete, or the turn was aborted (``ok`` is False)."""

    turn_id: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    service_ns: int = 0  # time the turn spent scheduled
    tool: str = ""  # the tool that the reply calls, where a parser found one
    tool_calls: int = -1  # how many it calls; -1: nobody looked
    ok: bool = True
    recomputed_tokens: int = 0  # prefilled once more since the engine had thrown the running turn out
    estimated: bool = False  # nobody counted the tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledTool:
    """A tool call in a reply, by the id that its agent knows it by; ``tool`` is what it counts as."""

    call_id: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRead(ProgramEvent):
    """Somebody read the turn's reply: the first tool that it calls (empty: none), and how many it calls.

    ``calls``: those of them that have an id.
    """

    turn_id: str
    tool: str = ""
    tool_calls: int = 0
    is_last: bool = False  # the client said with its request that this turn is the run's last
    calls: Sequence[CalledTool] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnqueued(ProgramEvent):
    """The agent asked for a tool that has not started yet.

    ``wants_slot``: it waits to be told that the host has room for it, and asks again while it is not.
    """

    call_id: str
    tool: str
    wants_slot: bool = False
    detached: bool = False  # as of ``ToolStarted``


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(ProgramEvent):
    """The tool runs.

    ``detached``: who saw it start, such as a hook of Claude Code, is no process that lives as long as the tool.
    Nobody can be asked whether it still runs.
    """

    call_id: str
    tool: str
    detached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(ProgramEvent):
    """The tool returned or failed. ``duration_ns`` is the publisher's, from start to end; 0 where it is unknown.

    ``told_after_ns`` above 0: the call is told of as a whole, as a span is, so long after its end. It opens and
    closes nothing. The time is the difference of two wall clocks, which places the call on a time line alone.
    """

    call_id: str
    tool: str
    duration_ns: int
    ok: bool = True
    detached: bool = False  # as of ``ToolStarted``: it may arrive before the start, which may be lost
    told_after_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentWanted(ProgramEvent):
    """The program's tools will need an environment, which is made once its turn nears. Sent again until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSampled(ProgramEvent):
    """The program has processes or containers that may be frozen. Sent as they are registered, frozen, and thawed.

    ``took_ns``: what that took from the command on; ``late_ns``: for how long a tool waited for it.
    """

    frozen: bool = False
    gone: bool = False  # nothing is registered any more
    awake_bytes: int = 0  # resident before it was frozen; 0: nobody looked
    held_bytes: int = 0  # resident now: what is frozen keeps its memory unless it is reclaimed
    took_ns: int = 0
    late_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded(ProgramEvent):
    """The run is over: its slot and its KV may go once the children that still run have ended, too.

    ``with_children``: they have ended with it. ``for_now``: it has answered and no tool of its own runs; it goes on
    if it is asked again, or is woken by a task in the background. ``frees``: nobody asks for its context again.
    """

    reason: str = ""
    with_children: bool = False
    for_now: bool = False
    frees: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSampled(Event):
    """The allocator's state, read in O(1). ``retractions`` counts up from the publisher's boot.

    ``reason``: why the engine pins nothing and orders nothing, though it is asked to; empty if it does.
    ``disaggregation``: ``PREFILL`` where other engines decode what it prefills, ``DECODE`` for those, which are
    counted and not decided for; empty where one does both.
    """

    total_blocks: int
    free_blocks: int
    evictable_blocks: int = 0
    retained_blocks: int = 0
    block_tokens: int = 1
    turns_running: int = 0
    turns_waiting: int = 0
    retractions: int = 0
    host_total_blocks: int = 0
    host_used_blocks: int = 0
    context_tokens: int = 0  # the longest context that its model takes; 0: it does not say
    reason: str = ""
    disaggregation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMoved(ProgramEvent):
    """Nobody told it to, and the engine took a context off the device, or gave up copies of it below.

    ``below_tokens``: what memory below the device has of it still, beside what it shares with others.
    """

    below_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinReclaimed(ProgramEvent):
    """The engine gave a pin up before its time, for a turn that needed room. The context may go from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlushed(Event):
    """An engine emptied its cache, as with new weights: no context is there any more, and no pin is in force.

    What runs goes on. ``replica``: the engine, with all its ranks, of which a gate tells; empty: the publisher
    itself, or all engines behind it.
    """

    replica: str = ""
    reason: str = ""

    def empties(self, place: str) -> bool:
        """Whether the engine at that place is meant."""
        if self.replica:
            return server_of(place) == server_of(self.replica)
        at = place_of(self.publisher)
        is_gate = kind_of(at.rpartition("/")[2]) == "gate"
        return stands_before(at, place) if is_gate else place == at


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSampled(Event):
    """The tool host. ``cpus`` is what a cgroup lets us use."""

    cpus: float
    cpu_use_ratio: float = 0.0
    cpu_stall_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandApplied(Event):
    """A command took effect. ``moved_to``: the tier where it has left the program's KV, for who did not send it."""

    command_id: int
    program_id: str = ""
    moved_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRejected(Event):
    """A command could not take effect here, and why."""

    command_id: int
    program_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A turn in a ``PublisherState``: held by the gate or open in the engine."""

    program_id: str
    turn_id: str
    blocks: int = 0
    parent_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTool:
    """A tool call in a ``PublisherState``."""

    program_id: str
    call_id: str
    tool: str
    started: bool
    wants_slot: bool = False  # as in ``ToolEnqueued``


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A slot in a ``PublisherState``, by the number of the command that gave it; 0: nobody knows."""

    program_id: str
    command_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A retained program in a ``PublisherState``, with the time that is left."""

    program_id: str
    ttl_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherState(Event):
    """All that one publisher holds now; it replaces what the ledger believed of that publisher.

    One that is too large for the bus comes in parts, one event behind the other: ``part`` counts from 0, and
    ``more`` says that it goes on.
    """

    held_turns: Sequence[OpenTurn] = field(default_factory=tuple)
    open_turns: Sequence[OpenTurn] = field(default_factory=tuple)
    open_tools: Sequence[OpenTool] = field(default_factory=tuple)
    grants: Sequence[Grant] = field(default_factory=tuple)
    pins: Sequence[Pin] = field(default_factory=tuple)
    role: str = ""
    part: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOrders(Event):
    """What an operator wants now, as a whole: it replaces what was wanted before.

    ``held``: root programs that get no slot, and give theirs back at the end of their turn. ``draining``: nobody
    who has no slot gets one.
    """

    held: Sequence[str] = field(default_factory=tuple)
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesListed(Event):
    """The engines that a fleet has, by place, as a whole: it replaces what was told before.

    ``draining``: no program is placed there any more. One that is in neither list is gone, and its memory with it.
    """

    serving: Sequence[str] = field(default_factory=tuple)
    draining: Sequence[str] = field(default_factory=tuple)


class Source(StrEnum):
    """Who may publish an event, by the role in its subject."""

    SERVING = "engine or gate"
    AGENT = "agents' hooks"
    HOST = "host probe"
    CONTROL = "operator or fleet"


class Decide(Enum):
    """When the controller decides after an event."""

    AT_ONCE = auto()  # a slot, an order or a pin may be due
    WHERE_TOOLS_WAIT = auto()  # at once if a tool waits for a slot of the host
    NEXT_INTERVAL = auto()


EVENTS: dict[type[Event], tuple[frozenset[Source], Decide]] = {
    kind: (frozenset(sources), decide)
    for kind, decide, *sources in (
        (ProgramArrived, Decide.AT_ONCE, Source.SERVING, Source.AGENT),
        (TurnQueued, Decide.AT_ONCE, Source.SERVING),
        (TurnHinted, Decide.NEXT_INTERVAL, Source.SERVING),
        (TurnAbandoned, Decide.AT_ONCE, Source.SERVING),
        (TurnSubmitted, Decide.NEXT_INTERVAL, Source.SERVING),
        (FirstToken, Decide.NEXT_INTERVAL, Source.SERVING),
        (TurnPrefilled, Decide.NEXT_INTERVAL, Source.SERVING),
        (TurnDecoded, Decide.NEXT_INTERVAL, Source.SERVING),
        (TurnEnded, Decide.AT_ONCE, Source.SERVING),
        (ToolEnqueued, Decide.AT_ONCE, Source.AGENT),
        (ToolStarted, Decide.AT_ONCE, Source.AGENT),
        (ToolEnded, Decide.WHERE_TOOLS_WAIT, Source.AGENT),
        (ProgramEnded, Decide.AT_ONCE, Source.SERVING, Source.AGENT),
        (PoolSampled, Decide.NEXT_INTERVAL, Source.SERVING),
        (HostSampled, Decide.WHERE_TOOLS_WAIT, Source.HOST),
        (CommandApplied, Decide.NEXT_INTERVAL, Source.SERVING),
        (CommandRejected, Decide.NEXT_INTERVAL, Source.SERVING),
        (PublisherState, Decide.AT_ONCE),  # of what it holds itself: ``transport.authorization`` looks into it
        (ReplyRead, Decide.AT_ONCE, Source.SERVING, Source.AGENT),
        (EnvironmentWanted, Decide.AT_ONCE, Source.AGENT),
        (SandboxSampled, Decide.NEXT_INTERVAL, Source.AGENT),
        (OperatorOrders, Decide.AT_ONCE, Source.CONTROL),
        (ContextMoved, Decide.NEXT_INTERVAL, Source.SERVING),
        (EnginesListed, Decide.AT_ONCE, Source.CONTROL),
        (PinReclaimed, Decide.NEXT_INTERVAL, Source.SERVING),
        (CacheFlushed, Decide.AT_ONCE, Source.SERVING),
        (TurnsRefused, Decide.NEXT_INTERVAL, Source.SERVING),
    )
}
"""Every event: who may publish it, and when the controller decides after it."""

EVENT_TYPES = tuple(EVENTS)


def deciding_events(*when: Decide) -> tuple[type[Event], ...]:
    """The events after which the controller decides then."""
    return tuple(kind for kind, (_, decide) in EVENTS.items() if decide in when)
