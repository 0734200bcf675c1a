"""Programs that wait for sub-agents: what becomes of their contexts meanwhile, and whom gates let in as children.

A parent whose tool waits for children comes back when the last of them has ended. When that will be can be told:
how many turns a program of a child's class has left, and what one takes. So its gap has a rate like a tool's
(``Estimates.return_rate``), and by that its room is lent or kept, by the same rules as anybody's.

Children need no slot: they ride their root's. So a tree always ends, whoever else asks.

**Paper**: none of the five plans for trees. MORI §3.1 makes sub-agents programs of their own, and so does its
preset (docs/adr/0021).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Adopt, Release
from controlplane.core.model.steps import Steps
from controlplane.core.model.types import Program, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRules:
    """What is made of a parent that waits for its children."""

    keep: bool = True  # a parent's return counts in the forecast, and its room is lent where that is worth it only


def unpinned_parents(changed: Iterable[Program], now_ns: int) -> Iterator[Release]:
    """Whoever waits for a child of its own is not about to come back: the child needs the room."""
    for program in changed:
        if program.delegating and program.retained_until_ns > now_ns:
            yield Release(program_id=program.program_id, reason="its tool waits for a child program")


def update_parent_etas(ledger: Ledger, now_ns: int) -> Steps[None]:
    """Work out when each parent that waits for its children is expected back: ``Program.back_at_ns``.

    Each program is looked at once, however deep the tree; there is a pause after each tree.
    """
    programs, forecaster = ledger.programs, ProgramForecaster(ledger.estimates)
    for root_id in programs.children:
        root = programs.by_name.get(root_id)
        if root is None or root.status is Status.ENDED:
            continue
        yield
        family = [programs.by_name[name] for name in programs.children_of(root_id)]
        waiting = [program for program in (root, *family) if program.delegating]
        if not waiting:
            continue
        left_ns = _left_ns(waiting, family, forecaster)
        for parent in waiting:
            parent.back_at_ns = now_ns + left_ns[parent.program_id]


def _left_ns(
    waiting: Iterable[Program], family: Iterable[Program], forecaster: ProgramForecaster
) -> dict[str, int]:
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
            own = ((_own_left_ns(child, forecaster), left_ns.get(child.program_id, 0)) for child in below)
            left_ns[name] = max((own_ns + below_ns for own_ns, below_ns in own), default=0)
    return left_ns


def _own_left_ns(program: Program, forecaster: ProgramForecaster) -> int:
    return round(forecaster.ahead(program, program.kv_blocks or 1)[1] * forecaster.lifetime_ns)


def adoptions(ledger: Ledger) -> Iterator[Adopt]:
    """Tell gates of children, whom they let in on their root's slot from then on."""
    programs = ledger.programs.by_name
    for name in list(ledger.runs.untold):
        child = programs.get(name)
        root = programs.get(child.root_id) if child is not None else None
        if child is None or root is None:
            del ledger.runs.untold[name]
            continue
        tenant, why = root.account or root.tenant, f"its agent said so: a child of {child.parent_id}"
        yield Adopt(program_id=name, parent_id=root.program_id, tenant=tenant, reason=why)
