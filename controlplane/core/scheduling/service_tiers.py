"""Who goes first among those that wait, where clients ask for a service tier.

Programs of the priority tier go before the others while their kind hold no more of the pool than the operator
grants them. Those of the flex tier go behind everybody, and give their slots back between two turns while others
wait; who has waited for ``control.overdue_s`` goes first all the same. It is an order within a tenant: tenants take
turns as ever.

**Paper**: OpenAI's ``service_tier`` and llm-d's objectives; that a share bounds priority is ours, as nobody who
asks for it pays for it here.
"""

from collections.abc import Iterator, Sequence

from controlplane.core.ledger import Ledger
from controlplane.core.model.hints import NO_HINTS, HintRules, ServiceTier
from controlplane.core.model.types import Program, QueuedProgram, Status
from controlplane.core.scheduling.slots import is_revocable

_FLEX, _PRIORITY = ServiceTier.FLEX, ServiceTier.PRIORITY


def in_tiers(
    order: Sequence[QueuedProgram], ledger: Ledger, rules: HintRules, total_blocks: int
) -> tuple[Sequence[QueuedProgram], dict[str, str]]:
    """The order with tiers apart, each in its own order still; and of whom it moved, why."""
    if not ledger.hints.tiers_asked:
        return order, {}
    programs = ledger.programs.by_name
    asked = {each.program_id: programs[each.program_id].hints for each in order}
    tiers = {name: rules.tier_of(hints) for name, hints in asked.items()}
    room = (
        rules.priority_share * total_blocks - _held_by_priority(ledger, rules) if _PRIORITY in tiers.values() else 0
    )
    first: list[QueuedProgram] = []
    rest: list[QueuedProgram] = []
    last: list[QueuedProgram] = []
    why = {}
    for each in order:
        tier, by = tiers[each.program_id], asked[each.program_id].tier_by
        if tier is _PRIORITY and each.blocks <= room:
            room -= each.blocks
            first.append(each)
            why[each.program_id] = f"it goes first by {by}, within control.hints.priority_share"
        elif tier is _FLEX:
            last.append(each)
            why[each.program_id] = f"it let others go first by {by}"
        else:
            rest.append(each)
    return [*first, *rest, *last], why


def gives_way(ledger: Ledger, rules: HintRules) -> Iterator[tuple[Program, str]]:
    """A program of the flex tier whose slot goes to somebody who waits and asked for no such thing, and why.

    One at a time: it is between two turns, and the last to have arrived.
    """
    programs, spent = ledger.programs, ledger.accounts.spent_now
    if not (ledger.hints.tiers_asked and programs.queue) or programs.draining:
        return
    waiting = (programs.by_name[name] for name in programs.queue if name not in programs.ordered_held)
    for waits in waiting:
        if waits.payer not in spent and rules.tier_of(waits.hints) is not _FLEX:
            break
    else:
        return
    found = [
        root
        for name in programs.active
        if not (root := programs.by_name[name]).parent_id
        and root.status is Status.ACTIVE
        and rules.tier_of(root.hints) is _FLEX
        and is_revocable(ledger, name)
    ]
    if found:
        root = max(found, key=lambda each: (each.arrived_at_ns, each.program_id))
        yield root, f"it gives way to {waits.program_id} by {root.hints.tier_by}"


def _held_by_priority(ledger: Ledger, rules: HintRules) -> int:
    """Blocks that active programs of the priority tier hold; who got its slot by it is of it while it has that."""
    active = (ledger.programs.by_name[name] for name in ledger.programs.active)
    tiers = ((each, (each.hints, each.entered_by or NO_HINTS)) for each in active)
    return sum(each.kv_blocks for each, asked in tiers if _PRIORITY in map(rules.tier_of, asked))
