"""What an operator ordered: programs that are held, and a node that drains.

A held program's turn runs to its end; then its slot and its pin go, and its next turn waits at the gate like any
other without a grant. A draining node lets nobody in; who has a slot keeps it to the end of the run.
"""

from collections.abc import Callable

from controlplane.core.ledger import Ledger
from controlplane.core.types import Program, QueuedProgram, Status


def admissible(ledger: Ledger, left: Callable[[Program], float] | None = None) -> list[QueuedProgram]:
    """Root programs that wait for a slot and may get one, in the order in which they began to wait.

    ``left`` tells what each is expected to hold until its end, if anybody asks.
    """
    state = ledger.state
    if state.draining:
        return []
    queued = ledger.queued(left)
    return [each for each in queued if each.program_id not in state.ordered_held] if state.ordered_held else queued


def held_back(ledger: Ledger) -> list[str]:
    """Active roots that an operator holds."""
    known = [ledger.programs[name] for name in ledger.state.ordered_held if name in ledger.programs]
    return [each.program_id for each in known if each.status is Status.ACTIVE and not each.parent_id]
