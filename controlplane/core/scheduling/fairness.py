"""Whose turn it is between tenants: by weight over KV memory x time, with floors that are lent while nobody asks.

Start-time fair queueing (Goyal et al. 1996) over KV space-time: of the tenants that wait, the one goes first that
has had least for its weight, counting what its programs that have a slot are expected to hold yet. Within a tenant
the preset's own order stays. A tenant that did not ask for long is owed nothing for that time. So with one tenant
the order is the preset's, whatever that is, and a tenant that floods the queue waits behind its own programs.

A tenant with a ``share`` is owed that part of the pool as soon as it waits. While it does not, others may fill it;
then they give it back, one slot at a time, at the ends of their turns.

**Paper**: Justitia (arXiv 2510.17015): virtual-time fair queueing with a cost of memory x time. It serves the tasks
of agents; floors, and tenants of many programs that hold memory at once, are ours (docs/adr/0057).
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.ledger import Ledger
from controlplane.core.model.types import Program, QueuedProgram, Status
from controlplane.core.scheduling.slots import is_revocable


@dataclass(frozen=True, slots=True, kw_only=True)
class InTurn:
    """Who waits, in order, and why: by program, whose turn it is. ``first`` are those for whom room is kept."""

    order: Sequence[QueuedProgram]
    why: Mapping[str, str] = field(default_factory=dict)
    first: frozenset[str] = frozenset()


def in_turn(order: Sequence[QueuedProgram], ledger: Ledger, total_blocks: int, most: int) -> InTurn:
    """The preset's ``order`` with tenants taking turns; the first ``most`` of it are in order, if not all.

    The same order where all are one tenant's.
    """
    accounts, programs = ledger.accounts, ledger.programs.by_name
    if not accounts.on:
        return InTurn(order=order)
    queues: dict[str, deque[QueuedProgram]] = {}
    for waiting in order:
        queues.setdefault(programs[waiting.program_id].payer, deque()).append(waiting)
    _wake(ledger, queues)
    if len(queues) < 2:
        return InTurn(order=order)
    owed = owed_blocks(ledger, queues, total_blocks)
    forecaster, missing = ProgramForecaster(ledger.estimates), dict(owed)
    heap = [(missing.get(name, 0) <= 0, accounts.virtual_time(name), name) for name in queues]
    heapq.heapify(heap)
    merged: list[QueuedProgram] = []
    why: dict[str, str] = {}
    first: list[str] = []
    while heap and len(merged) < most:
        lent, had, name = heapq.heappop(heap)
        waiting = queues[name].popleft()
        merged.append(waiting)
        why[waiting.program_id] = _turn_reason(name, had, len(queues), owed.get(name, 0) if not lent else 0)
        if not lent and missing.get(name, 0) == owed[name]:
            first.append(waiting.program_id)  # room is kept for one of each, or nobody else would ever be let in
        if name in missing:
            missing[name] -= waiting.blocks
        if queues[name]:
            cost = forecaster.token_s(programs[waiting.program_id]) / accounts.tenancy.of(name).weight
            heapq.heappush(heap, (missing.get(name, 0) <= 0, had + cost, name))
    for _, _, name in sorted(heap):
        merged.extend(queues[name])
    return InTurn(order=merged, why=why, first=frozenset(first))


def _wake(ledger: Ledger, waiting: Mapping[str, object]) -> None:
    accounts = ledger.accounts
    for name in waiting:
        if not accounts.of(name).waits:
            accounts.wakes(name)
    for name, use in accounts.by_tenant.items():
        use.waits = name in waiting


def _turn_reason(tenant: str, had: float, tenants: int, owed: int) -> str:
    if owed > 0:
        return f"tenant {tenant} gets its share back, {owed:,} blocks"
    return f"tenant {tenant}'s turn: {had:,.0f} token-s for its weight is least of the {tenants} that wait"


def held_by_tenant(ledger: Ledger) -> Counter[str]:
    """Blocks that the active programs hold beside the shared prefix and do not lend, by tenant."""
    programs, held = ledger.programs.by_name, Counter[str]()
    for name in ledger.programs.active:
        program = programs[name]
        if not program.lends:
            held[programs[program.root_id].payer] += program.kv_blocks - program.shared_blocks
    return held


def owed_blocks(
    ledger: Ledger, waiting: Mapping[str, object], total_blocks: int, held: Mapping[str, int] | None = None
) -> dict[str, int]:
    """What each tenant that waits has less than its share, in blocks; only those that have less."""
    tenancy = ledger.accounts.tenancy
    if not tenancy.has_floors or not total_blocks:
        return {}
    held = held if held is not None else held_by_tenant(ledger)
    missing = {name: int(tenancy.of(name).share * total_blocks) - held[name] for name in waiting}
    return {name: blocks for name, blocks in missing.items() if blocks > 0}


def share_reclaims(ledger: Ledger, total_blocks: int) -> list[tuple[Program, str]]:
    """Programs whose slot goes back to a tenant that is owed its share, and why; of each such tenant one at a time.

    They are of tenants that hold more than their own share, between two turns, the last arrived first. No more is
    taken than is owed, and asked for, before the tenant has got a slot.
    """
    accounts, programs = ledger.accounts, ledger.programs
    if not accounts.tenancy.has_floors or not programs.queue or programs.draining:
        return []
    asked = Counter[str]()
    for name in programs.queue:
        if name not in programs.ordered_held:
            asked[programs.by_name[name].payer] += programs.by_name[name].queued_blocks
    found: list[tuple[Program, str]] = []
    held = held_by_tenant(ledger)
    borrowers: list[Program] | None = None
    for tenant, missing in owed_blocks(ledger, asked, total_blocks, held).items():
        use = accounts.of(tenant)
        if tenant in accounts.spent_now or use.freed_blocks >= min(missing, asked[tenant]):
            continue
        borrowers = _borrowers(ledger, held, total_blocks) if borrowers is None else borrowers
        borrower = next((root for root in borrowers if root.payer != tenant), None)
        if borrower is not None:
            use.freed_blocks += max(1, borrower.kv_blocks - borrower.shared_blocks)
            use.given_back += 1
            found.append(
                (borrower, f"tenant {borrower.payer} gives back what it borrowed of tenant {tenant}'s share")
            )
    return found


def _borrowers(ledger: Ledger, held: Mapping[str, int], total_blocks: int) -> list[Program]:
    """Roots that may leave now, of tenants beyond their share: whose holds most for its weight comes first."""
    tenancy, programs = ledger.accounts.tenancy, ledger.programs
    roots = [
        root
        for name in programs.active
        if not (root := programs.by_name[name]).parent_id
        and root.status is Status.ACTIVE
        and held[root.payer] > tenancy.of(root.payer).share * total_blocks
        and is_revocable(ledger, name)
    ]
    most = {name: held[name] / tenancy.of(name).weight for name in {root.payer for root in roots}}
    return sorted(roots, key=lambda root: (most[root.payer], root.arrived_at_ns, root.program_id), reverse=True)
