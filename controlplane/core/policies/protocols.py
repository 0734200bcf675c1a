"""The six policies, as protocols: pure functions of state and ``now_ns``.

A policy is a frozen dataclass of parameters, checked at construction. Where its kind may remember something
(admission, retention, placement) its memory is a second frozen dataclass, its state, which goes in and comes out
again; ``initial`` makes the first one. Packing, priority and memory policies remember nothing. So the daemon, the
engine plugin and the simulator run the same code, and a snapshot is the states written down.

To add a policy: one file in its folder, one line in that folder's ``__init__`` dict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Protocol, Self, TypeVar

from controlplane.core.estimators.idleness import Decay
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Replica

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Stateless:
    """The state of a policy that remembers nothing."""


STATELESS = Stateless()


class NoState:
    """What a policy derives from that remembers nothing."""

    def initial(self) -> Stateless:
        return STATELESS


@dataclass(frozen=True, slots=True)
class Checked:
    """The state of a policy that looks once in a while: when it last did; -1: never."""

    at_ns: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """The state of an admission policy that moves a window of its own: a restart finds it in what was announced."""

    window: float

    def at(self, window: float) -> Self:
        """With the window that it had announced."""
        return replace(self, window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An admission decision: how many root programs may be active. ``limit`` 0 means no limit."""

    limit: int
    window: float  # before the caps
    reason: str
    room_blocks: tuple[int, ...] = ()  # on each engine, for who is let in now; (): that does not matter
    ahead_blocks: tuple[float, ...] = ()  # at each point of the forecast's grid, for newcomers; (): likewise
    filled_blocks: float = 0.0  # what the forecast may fill: ``ahead_blocks`` is what is left of it
    returning_blocks: float = 0.0  # so much more than its room on one engine a program that comes back may take
    excess_now_ratio: float = 0.0  # of the pool: being overfull by so much is no overload
    excess_ratio: float = 0.0  # of what all will need, over that time: so much may be too much
    strict: bool = False  # nobody is let in beyond the limit, however long the engine is idle


class AdmissionPolicy(Protocol[S]):
    """How many programs may be active (MARS UpdateWindow)."""

    def initial(self) -> S: ...

    def update(self, state: S, facts: Estimates, pressure: Pressure, now_ns: int) -> tuple[S, Window]: ...


class PackingPolicy(Protocol):
    """In which order waiting programs are admitted (MARS PackQueue). Returns a permutation of ``queue``."""

    looks_ahead: ClassVar[bool] = False
    """Whether it asks what each program is expected to hold until its end (``QueuedProgram.left``)."""

    groups: ClassVar[bool] = False
    """Whether rollouts of one prompt begin together, and a batch of them ends early (``scheduling.groups``)."""

    ages: ClassVar[bool] = False
    """Whether everybody comes to its front in time; else whoever has waited for ``overdue_s`` goes there."""

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]: ...


class RetentionPolicy(Protocol[S]):
    """What happens to the KV of programs whose tool runs.

    ``changed`` are the programs that began to act since the last call, in that order; ``programs`` are all, so
    that a policy can fill tiers or break a deadlock of pins. Returns Retain, Release, Demote, Prefetch, Discard
    and Label commands, and Pause for active roots.
    """

    @property
    def decay(self) -> Decay | None:
        """How an acting program's weight in the KV demand falls; None: it does not."""
        return None

    @property
    def lends(self) -> bool:
        """Whether an active program that will be away for long leaves its room to others (docs/adr/0030)."""
        return False

    @property
    def slots_for_children(self) -> bool:
        """Whether a sub-agent is a program of its own, and its parent one whose tool runs (docs/adr/0021)."""
        return False

    def initial(self) -> S: ...

    def plan(
        self,
        state: S,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[S, Sequence[Command]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The sizes of one engine that its own queue and memory are judged by."""

    pool_blocks: int
    block_tokens: int
    chunk_tokens: int  # of a prefill step at most
    floor_tokens: int = 64  # a chunk below this, or below a block, is not worth a step

    @property
    def floor_blocks(self) -> int:
        return max(1, -(-self.floor_tokens // self.block_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCall:
    """A turn in the engine's own waiting queue."""

    turn_id: str
    program_id: str
    queued_at_ns: int
    footprint_blocks: int  # prompt and expected output
    cached_blocks: int = 0  # of those: in the cache, as far as is known; 0 where the policy does not ask
    program_arrived_at_ns: int = 0
    served_tokens: int = 0  # to its program, in the running quota window
    retracted: bool = False
    pinned: bool = False  # its program's context is
    label: str = ""  # its program's: ``busy``, ``idle``, ``inactive``, or none


class PriorityPolicy(Protocol):
    """The order of the engine's waiting queue, and the level of whoever is or was in it."""

    @property
    def window_ns(self) -> int:
        """How long served tokens count; 0: nobody need count them."""
        return 0

    @property
    def asks_cached(self) -> bool:
        """Whether it asks what of a call is cached (``QueuedCall.cached_blocks``)."""
        return False

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        """A permutation of ``calls``, the one to run first in front."""
        ...

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        """Where a program of that footprint and service stands: 0 runs first and is evicted last."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """A turn that an engine is wanted for."""

    program: Program
    blocks: int  # it is expected to need: prompt and output
    reusable_tokens: int = 0  # leading ones of the prompt that are its program's last context
    held: bool = False  # at a gate, so that it begins at once; else it comes after a tool, or a person
    may_move: bool = True  # those tokens' KV may be sent to another engine: it is the program's own


class Choice(StrEnum):
    """What becomes of a program's KV with the turn that is placed."""

    NEW = "new"  # it has none
    STAY = "stay"  # on the engine of its last turn, though the turn may wait there
    MIGRATE = "migrate"  # it is sent to another engine
    REPREFILL = "re-prefill"  # it is computed anew on another engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a turn goes, and what that and each alternative that was weighed is expected to cost in time."""

    replica: str
    choice: Choice
    costs_ns: Mapping[Choice, int] = field(default_factory=dict)

    @property
    def cost_ns(self) -> int:
        """Of the choice: waiting, moving and computing anew; 0 for a turn that finds its context and room."""
        return self.costs_ns.get(self.choice, 0)


class PlacementPolicy(Protocol[S]):
    """On which engine a program's next turn runs. ``replicas`` is not empty and sorted by name."""

    def initial(self) -> S: ...

    def place(
        self, state: S, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[S, Placed]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Cached KV that nothing running uses: it may be evicted, from its tail, in blocks."""

    program_id: str
    blocks: int
    last_used_ns: int
    level: int = 0  # of the priority policy
    label: str = ""  # ``busy``, ``idle``, ``inactive``, or none
    parked: bool = False  # its program ended or was paused: nobody waits for it


class ResidentView(Protocol):
    """``Resident`` as policies see it: an engine may work the level out only when it is asked for."""

    @property
    def program_id(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def last_used_ns(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def parked(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Cached KV that nothing running uses and that is held until a time."""

    program_id: str
    blocks: int
    until_ns: int
    program_arrived_at_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What the engine should do about a chunk: schedule ``chunk_blocks`` of it after evicting ``victims``."""

    chunk_blocks: int
    victims: Sequence[tuple[str, int]]  # (program_id, blocks), in the order to evict


class MemoryPolicy(Protocol):
    """Make room for a chunk. ``candidates`` come least recently used first and may be consumed lazily.

    Pinned programs are none of them; ``unpin`` tells which become some. ``least_blocks`` is the smallest chunk that
    is worth a step; it equals ``chunk_blocks`` where nothing smaller helps, as in decoding. A ``chunk_blocks`` of 0
    in the answer means: nothing can be scheduled now.
    """

    @property
    def shrinks(self) -> bool:
        """Whether a call that does not fit as a whole may begin with a smaller chunk."""

    @property
    def pins_outlast_waits(self) -> bool:
        """Whether a pin holds past its time while its program's next turn waits to be scheduled."""

    @property
    def pin_budget_ratio(self) -> float:
        """The share of the pool that pins may take together, unless the engine is told otherwise."""

    @property
    def retracts_by_level(self) -> bool:
        """Whether a running turn that must go for want of room is the one of the lowest priority.

        Among equals the largest goes. Else the engine chooses by its own rule.
        """

    def unpin(self, pins: Sequence[Pinned], shortfall_blocks: int, stuck: bool) -> Sequence[str]:
        """Whose pins go for a call that finds no room, though all that may be evicted was: names from ``pins``.

        ``stuck``: nothing runs and nothing else can begin, so that only an answer helps.
        """

    def host_rank(self, label: str, parked: bool) -> int:
        """In which order copies in host memory make room, by their program's label: the lowest goes first.

        ``parked``: the program ended or was paused. Copies of one rank go least recently used first.
        """

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> Fit: ...
