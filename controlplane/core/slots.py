"""Who may get a slot, and whose slot is taken back.

A gate that lost its daemon lets programs in by itself, so that the window may be overfull when the daemon is back.
Who came in that way gives its slot back at the end of its turn, the last arrived first, until the others fit. A
slot that was granted is not taken back because the window becomes small.

A tenant that has spent its budget gives its slots back at the ends of its turns, and gets none until its next
window.

A program that an operator holds runs its turn to its end; then its slot and its pin go, and its next turn waits at
the gate like any other without a grant. A draining node lets nobody in; who has a slot keeps it to the end of the
run.

**Paper**: MARS §4.2 has no gate without a daemon, and never revokes; this is ours (docs/adr/0010).
"""

from collections.abc import Callable

from controlplane.core.ledger import Ledger
from controlplane.core.steps import Steps, in_chunks
from controlplane.core.types import Left, Program, QueuedProgram, Status


def gathering(ledger: Ledger, left: Callable[[Program], Left] | None = None) -> Steps[list[QueuedProgram]]:
    """Root programs that wait for a slot and may get one, in the order in which they began to wait; with pauses.

    ``left`` tells what each is expected to hold until its end, if anybody asks.
    """
    programs, spent, found = ledger.programs, ledger.accounts.spent_now, list[QueuedProgram]()
    for names in in_chunks(() if programs.draining else programs.queue):
        for program in (programs.by_name[name] for name in names if name not in programs.ordered_held):
            if program.payer not in spent:
                found.append(QueuedProgram.of(program, *(left(program) if left else ())))
        yield
    return found


def first_admissible(ledger: Ledger) -> Program | None:
    """Whom ``gathering`` has in front."""
    programs, spent = ledger.programs, ledger.accounts.spent_now
    if programs.draining:
        return None
    waiting = (programs.by_name[name] for name in programs.queue if name not in programs.ordered_held)
    return next((each for each in waiting if each.payer not in spent), None)


def held_back(ledger: Ledger) -> list[str]:
    """Active roots that an operator holds."""
    programs = ledger.programs
    known = [programs.by_name[name] for name in programs.ordered_held if name in programs.by_name]
    return [each.program_id for each in known if each.status is Status.ACTIVE and not each.parent_id]


def overdrawn(ledger: Ledger) -> list[Program]:
    """Active roots of tenants that have spent a budget."""
    spent, programs = ledger.accounts.spent_now, ledger.programs
    if not spent:
        return []
    active = (programs.by_name[name] for name in programs.active)
    return [each for each in active if not each.parent_id and each.payer in spent]


def leaving(ledger: Ledger, limit: int) -> list[str]:
    """The roots that nobody let in and that must give their slot back, the last arrived first.

    ``limit`` 0 means no limit. Those that fit keep their slots for good. Nobody need leave where no gate holds
    anything.
    """
    programs = ledger.programs
    excess = programs.charges.active_roots - limit if limit else 0
    if excess <= 0:
        programs.unasked.clear()
    if not programs.unasked or not (programs.gated or programs.askers):
        return []
    arrived_at_ns = {name: programs.by_name[name].arrived_at_ns for name in programs.unasked}
    return sorted(programs.unasked, key=arrived_at_ns.__getitem__, reverse=True)[:excess]


def may_leave_now(ledger: Ledger, root_id: str) -> bool:
    """Whether no turn of the root or of its children is in the engine, and the gate would hold the next one.

    While turns without a grant run all the same there is no gate, or it is open still: to take a slot back then
    would change nothing but the books.
    """
    programs = ledger.programs
    if not programs.gated:
        return False
    family = (root_id, *programs.children_of(root_id))
    return not any(programs.by_name[name].open_turns for name in family)
