"""What the control plane asks for: commands, each with a reason that a person can read.

A deadline travels as ``ttl_ns``, counted from receipt: clocks are never compared across machines.
"""

from dataclasses import dataclass

from controlplane.core.model.events import CommandApplied, CommandRejected
from controlplane.core.model.types import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What every command carries. ``command_id`` counts from 1 within a daemon's state."""

    command_id: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCommand(Command):
    """A command about one program."""

    program_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWindow(Command):
    """MARS's window_update: the admission limit, and the raw window behind its caps. 0 means no limit."""

    limit: int
    window: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(ProgramCommand):
    """Grant the program a slot: its held turns go, later ones pass. The grant is a lease of ``ttl_ns``."""

    ttl_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt(ProgramCommand):
    """The program is a child of ``parent_id``, a root, by the word of its agent: its turns ride that one's slot.

    ``tenant`` is whose both are; empty where nobody said.
    """

    parent_id: str
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(ProgramCommand):
    """The program's next turns go to the engine ``replica``, one of those behind its gate: ``node/role``.

    What another engine, the one that it ``leaves``, has of its context is nobody's from then on, unless ``moves``
    says that it is sent there. Empty: it leaves none.
    """

    replica: str
    moves: bool = False
    leaves: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(ProgramCommand):
    """Take the slot back after the running turn: later turns are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(ProgramCommand):
    """Its held turns and those to come are refused for ``ttl_ns``, its children's too. Running turns go on.

    0: for good, since the run's own budget is spent. ``code``: one of ``events.REFUSALS``.
    """

    ttl_ns: int = 0
    code: str = "budget_spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain(ProgramCommand):
    """Keep the program's KV on the device for ``ttl_ns``."""

    ttl_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(ProgramCommand):
    """Unpin: the KV becomes evictable again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(ProgramCommand):
    """Unpin, and move the program's own KV to host memory. A rejected one has unpinned all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch(ProgramCommand):
    """Load the KV back from host memory. Applied once the load was started.

    No preset sends it: an engine loads by itself what a turn finds below. It is for policies of tiers that are slow
    to load from, which have to begin before the turn comes.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(ProgramCommand):
    """Free the KV now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(ProgramCommand):
    """MORI's typed label: ``busy``, ``idle`` or ``inactive``."""

    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTool(ProgramCommand):
    """The host has room for the tool call, which waits for that: it may start."""

    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareEnvironment(ProgramCommand):
    """The program's turn nears: make the environment that its tools will need (ThunderAgent §4.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelEnvironment(ProgramCommand):
    """The program has left the queue: its environment is not needed now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(ProgramCommand):
    """The program waits: freeze its sandbox until ``Thaw``, or until the daemon is not heard any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thaw(ProgramCommand):
    """The program's tools may be called soon: wake its sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest(Command):
    """Ask a publisher (empty: every one) for its ``PublisherState``.

    What agents' hooks said in the last ``lost_ns`` may be lost, and they say it again: no state tells a goodbye.
    """

    publisher: str = ""
    lost_ns: int = 0


MOVES: dict[type[Command], Tier] = {Demote: Tier.HOST, Prefetch: Tier.HBM, Discard: Tier.NONE}
"""Where a program's KV is once such a command was applied."""


def answer(command: Command, problem: str) -> CommandApplied | CommandRejected:
    """What became of the command: it was done, or not, for that ``problem``."""
    number, program_id = command.command_id, getattr(command, "program_id", "")
    if problem:
        return CommandRejected(command_id=number, program_id=program_id, reason=problem)
    return CommandApplied(command_id=number, program_id=program_id, moved_to=MOVES.get(type(command), ""))


COMMAND_TYPES: tuple[type[Command], ...] = (
    SetWindow,
    Admit,
    Pause,
    Retain,
    Release,
    Demote,
    Prefetch,
    Discard,
    Label,
    StateRequest,
    StartTool,
    PrepareEnvironment,
    CancelEnvironment,
    Freeze,
    Thaw,
    Adopt,
    Place,
    Refuse,
)


@dataclass(slots=True, kw_only=True)
class Numbering:
    """How commands are counted, so that whoever hears them knows what was missed and who said it last.

    A daemon that starts counts on from a number that no daemon before it has reached (``begin``). Among two that
    command the same node the later one's numbers are higher, and a number that is told back tells of which life it
    is.
    """

    sent: int = 0  # the number of the last command
    began: int = 0  # this life's commands are numbered beyond it
    recalled: int = 0  # of earlier lives the commands up to it are remembered

    def next(self) -> int:
        self.sent += 1
        return self.sent

    def begin(self, number: int) -> None:
        """A new life: count on from ``number``, or from where the last one ended as far as that is known."""
        self.recalled = self.sent
        self.began = self.sent = max(self.sent, number)

    def remembers(self, number: int) -> bool:
        """Whether what followed the command is known; 0, a command that nobody counted, never is."""
        return 0 < number <= self.recalled or self.began < number <= self.sent
