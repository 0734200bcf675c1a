"""Programs that wait for sub-agents: what becomes of their contexts meanwhile, and when the sub-agents begin.

A parent whose tool waits for children comes back when the last of them has ended. When that will be can be told:
how many turns a program of a child's class has left, and what one takes. So its gap has a rate like a tool's
(``Facts.return_rate``), and by that its room is lent or kept, its context moved to memory below the device and
fetched again, by the same rules as anybody's.

Children of one parent that ask together are a gang: what is gained by letting in one of them is gained when the
last has ended. They are let in together, once there is room for all of them, now and by the forecast, in the room
that newcomers find; they go before those, and need no slot, since they ride their root's. A gang waits no longer
than ``gang_s``, and not while the engine idles. So a tree always ends: nobody holds what its parent waits for for
longer than that, whoever else asks.

**Paper**: none of the five knows trees (docs/adr/0058).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.commands import Adopt, Command, Demote, Prefetch
from controlplane.core.errors import require
from controlplane.core.estimate import as_seconds
from controlplane.core.forecast import POINTS, Growing, needs
from controlplane.core.ledger import Ledger
from controlplane.core.policies import Window
from controlplane.core.room import Room
from controlplane.core.types import Program, Status, Tier, seconds
from controlplane.core.usual import Usual


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRules:
    """Times in seconds; ``gang_s`` 0 lets children in at once, ``prefetch_s`` 0 moves no context."""

    gang_s: float = 300.0  # sub-agents that ask together wait so long at most for room for all of them
    keep: bool = True  # a parent's return counts in the forecast, and its room is lent where that is worth it only
    prefetch_s: float = 2.0  # so long before its last sub-agent is expected to end a moved context is fetched

    def __post_init__(self) -> None:
        require("gang_s", self.gang_s, low=0, high=3600)
        require("prefetch_s", self.prefetch_s, low=0, high=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Children of one parent that wait for their first slot."""

    root_id: str
    parent_id: str
    children: tuple[tuple[str, int], ...]  # with what each needs now, in blocks
    since_ns: int  # the first of them came
    turn_index: ClassVar[int] = 0  # they are new

    @property
    def blocks(self) -> int:
        """What they need together now."""
        return sum(blocks for _, blocks in self.children)


def expect(ledger: Ledger, now_ns: int) -> None:
    """Work out when each parent that waits for its children is expected back: ``Program.back_at_ns``.

    Each program is looked at once, however deep the tree.
    """
    programs, usual = ledger.programs, Usual(ledger.estimates)
    for root_id in programs.children:
        root = programs.by_name.get(root_id)
        if root is None or root.status is Status.ENDED:
            continue
        family = [programs.by_name[name] for name in programs.children_of(root_id)]
        waiting = [program for program in (root, *family) if program.delegating]
        if not waiting:
            continue
        left_ns = _left_ns(waiting, family, usual)
        for parent in waiting:
            parent.back_at_ns = now_ns + left_ns[parent.program_id]


def _left_ns(waiting: Iterable[Program], family: Iterable[Program], usual: Usual) -> dict[str, int]:
    """How long the children of each parent in ``waiting`` will take, in nanoseconds, by the parent's name.

    A child that waits for children of its own goes on when they have ended.
    """
    children: dict[str, list[Program]] = {}
    for each in family:
        if each.status is not Status.ENDED:
            children.setdefault(each.parent_id, []).append(each)
    left_ns: dict[str, int] = {}
    begun: set[str] = set()
    stack = list(waiting)
    while stack:
        parent = stack[-1]
        name = parent.program_id
        below = children.get(name, ())
        if name not in begun:
            begun.add(name)
            stack += [child for child in below if child.delegating and child.program_id not in begun]
            continue
        stack.pop()
        if name not in left_ns:
            own = ((_own_left_ns(child, usual), left_ns.get(child.program_id, 0)) for child in below)
            left_ns[name] = max((own_ns + below_ns for own_ns, below_ns in own), default=0)
    return left_ns


def _own_left_ns(program: Program, usual: Usual) -> int:
    return round(usual.ahead(program, program.kv_blocks or 1)[1] * usual.lifetime_ns)


def gangs(ledger: Ledger) -> list[Gang]:
    """Children that wait for their first slot beside a parent that waits for them, the first to come in front."""
    programs, found = ledger.programs, dict[tuple[str, str], list[tuple[Program, int]]]()
    for root_id in programs.askers:
        root = programs.by_name.get(root_id)
        if root is None or root.status is not Status.ACTIVE or root_id not in programs.children:
            continue
        for turn_id in ledger.gates.held_of.get(root_id, ()):
            held = ledger.gates.held[turn_id]
            child = programs.by_name[held.program_id]
            parent = programs.by_name.get(child.parent_id)
            if parent is not None and parent.delegating and child.status is Status.WAITING:
                found.setdefault((root_id, parent.program_id), []).append((child, held.blocks))
    made = [
        Gang(
            root_id=root_id,
            parent_id=parent_id,
            children=tuple((child.program_id, blocks) for child, blocks in members),
            since_ns=min(child.arrived_at_ns for child, _ in members),
        )
        for (root_id, parent_id), members in found.items()
    ]
    return sorted(made, key=lambda gang: (gang.since_ns, gang.parent_id))


def held_gangs(
    found: Sequence[Gang], ledger: Ledger, window: Window, rules: TreeRules, now_ns: int
) -> tuple[list[Gang], Window]:
    """Those of ``found`` that have to wait for room, now and over the time to come; the others may begin.

    What is left of the window's room is told, too: nobody else gets what a gang waits for.
    """
    usual = Usual(ledger.estimates)
    room: Room[Gang] = Room(window, lambda gang: _needs(gang, ledger, usual))
    held = []
    for gang in found:
        if not room.take(gang):
            room.reserve(gang)
            if ledger.turns.running and now_ns - gang.since_ns < seconds(rules.gang_s):
                held.append(gang)
    return held, room.left(window)


def adoptions(ledger: Ledger, held: Mapping[str, Collection[str]]) -> Iterator[Adopt]:
    """What tells gates of children, whom they let in on their root's slot from then on; not of ``held``, by root.

    By its own word nobody is a child, and those of a gang may begin together.
    """
    programs = ledger.programs.by_name
    for name in list(ledger.runs.untold):
        child = programs.get(name)
        root = programs.get(child.root_id) if child is not None else None
        if child is not None and name in held.get(child.root_id, ()):
            continue
        if child is None or root is None:
            del ledger.runs.untold[name]
            continue
        tenant, why = root.account or root.tenant, f"its agent said so: a child of {child.parent_id}"
        yield Adopt(program_id=name, parent_id=root.program_id, tenant=tenant, reason=why)


def _needs(gang: Gang, ledger: Ledger, usual: Usual) -> tuple[float, ...]:
    """What the children will need together, at each point of the forecast's grid."""
    sums = [0.0] * POINTS
    for name, blocks in gang.children:
        grown, lifetimes = usual.ahead(ledger.programs.by_name[name], blocks)
        for place, need in enumerate(needs(Growing(blocks, blocks + grown, lifetimes))):
            sums[place] += need
    return tuple(sums)


def moves(programs: Iterable[Program], rules: TreeRules, now_ns: int) -> list[Command]:
    """What becomes of the contexts of parents that wait: to host memory while they lend, and back in time."""
    commands: list[Command] = []
    ahead_ns = seconds(rules.prefetch_s)
    for program in programs:
        if not program.delegating or not program.back_at_ns or program.open_turns or program.quarantined:
            continue
        left_ns = program.back_at_ns - now_ns
        why = f"its last sub-agent is expected to end in {as_seconds(max(0, left_ns)):.1f}s"
        if program.kv_tier is Tier.HBM and program.lends and not program.demoted and left_ns > 2 * ahead_ns:
            program.demoted = True
            commands.append(Demote(program_id=program.program_id, reason=why))
        elif program.kv_tier is Tier.HOST and not program.fetched and left_ns <= ahead_ns:
            program.fetched = True
            commands.append(Prefetch(program_id=program.program_id, reason=why))
    return commands
