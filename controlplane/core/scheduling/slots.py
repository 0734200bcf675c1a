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

from collections.abc import Callable, Iterator

from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Command, Pause, Release
from controlplane.core.model.steps import Steps, in_chunks
from controlplane.core.model.types import Left, Program, QueuedProgram, Status

MOST_TAKEN_BACK = 256  # slots a tick, so that a long outage's end does not hold one up; the next follows at once


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


def _to_revoke(ledger: Ledger, limit: int) -> list[str]:
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


def is_revocable(ledger: Ledger, root_id: str) -> bool:
    """Whether no turn of the root or of its children is in the engine, and the gate would hold the next one.

    While turns without a grant run all the same there is no gate, or it is open still: to take a slot back then
    would change nothing but the books.
    """
    programs = ledger.programs
    if not programs.gated:
        return False
    family = (root_id, *programs.children_of(root_id))
    return not any(programs.by_name[name].open_turns for name in family)


def takes_slot(ledger: Ledger, root_id: str, reason: str, now_ns: int) -> Iterator[Command]:
    """The root's slot goes, and its pin with it."""
    pinned = ledger.programs.by_name[root_id].retained_until_ns > now_ns
    yield Pause(program_id=root_id, reason=reason)
    if pinned:
        yield Release(program_id=root_id, reason="its slot was taken back")


def takes_back(ledger: Ledger, limit: int, now_ns: int, going: set[str]) -> Iterator[Command]:
    """Slots that nobody granted, at a turn's end. ``going`` gets the roots that must go and cannot yet."""
    taken = 0
    for root_id in _to_revoke(ledger, limit):
        if taken >= MOST_TAKEN_BACK or not is_revocable(ledger, root_id):
            going.add(root_id)
            continue
        taken += 1
        ledger.publishers.counts.taken_back += 1
        yield from takes_slot(ledger, root_id, "an open gate let it in above the window", now_ns)


def holds_back(ledger: Ledger, now_ns: int, going: set[str]) -> Iterator[Command]:
    """Slots of programs that an operator holds, or whose tenant has spent a budget, at a turn's end.

    ``going`` gets all such roots that are active.
    """
    programs, spent = ledger.programs, ledger.accounts.spent_now
    reasons = [(name, "an operator holds it") for name in programs.ordered_held]
    if spent:
        payers = {name: programs.by_name[name].payer for name in programs.active}
        reasons += [(name, spent[payer]) for name, payer in payers.items() if payer in spent]
    for name, why in reasons:
        root = programs.by_name.get(name)
        if root is not None and root.status is Status.ACTIVE and not root.parent_id:
            going.add(name)
            if is_revocable(ledger, name):
                yield from takes_slot(ledger, name, why, now_ns)
