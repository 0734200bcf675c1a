"""A program that ran by itself turns out to be a child; a part of ``ledger``.

Announcements come in batches, and a child's first request may overtake its own (docs/adr/0036).
"""

from typing import TYPE_CHECKING

from controlplane.core.lifecycle import Trigger
from controlplane.core.types import Program, Status

if TYPE_CHECKING:
    from controlplane.core.ledger import Ledger


def are_strangers(tenant: str, other: str) -> bool:
    """Whether these are two tenants; a program of which nobody said whose it is may be anybody's."""
    return bool(tenant and other) and tenant != other


def adopt(ledger: "Ledger", program: Program, parent_id: str, tenant: str, now_ns: int) -> None:
    """Make a root the child of ``parent_id``: its held turns, its children and its slot go over to its new root.

    Not where that is itself, or a stranger's; nor if it runs and its parent has ended, whom that would revive.
    """
    root, active = ledger.root_of(ledger.program(parent_id, now_ns), now_ns), program.status is Status.ACTIVE
    ended = root.status is Status.ENDED
    if root is program or are_strangers(tenant, root.tenant) or (active and ended):
        return
    name, state, since_ns = program.program_id, ledger.state, program.queued_at_ns
    turns, blocks, held = program.queued_turns, program.queued_blocks, ledger._held_of.pop(name, {})
    ledger.queue_more(program, -turns, -blocks)
    program.queued_at_ns = 0
    ledger.askers.pop(name, None)
    ledger.totals.count(program, -active)
    program.parent_id = parent_id
    ledger.totals.count(program, active)
    state.active_changes += active
    family = {name: None, **ledger._children.pop(name, {})}
    ledger._children.setdefault(root.program_id, {}).update(family)
    for child in family:
        ledger.programs[child].root_id = root.program_id
    was_unasked = name in state.unasked
    state.unasked.pop(name, None)
    if active and root.status is not Status.ACTIVE:
        ledger.move(root, Trigger.SUBMIT, now_ns)
        if was_unasked:
            state.unasked[root.program_id] = None
    if turns:
        ledger._held_of.setdefault(root.program_id, {}).update(held)
        ledger.move(root, Trigger.QUEUE, now_ns)
        if root.status is not Status.ACTIVE:
            root.queued_at_ns = min(since_ns or now_ns, root.queued_at_ns or now_ns)
        ledger.queue_more(root, turns, blocks)
