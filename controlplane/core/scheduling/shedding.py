"""Load shedding: who would wait for longer than it can is told so as it comes, and not after it has waited.

Beyond what can be served somebody must go, and who has had no turn yet loses least. So newcomers pay, at the door:
one whose place in the order means a longer wait than its client or its gate allows is refused, and told when to
come again. Programs that have begun are never refused for waiting.

**Paper**: none of those that are united here; CoDel and its kin shed by the time that is waited, as this does.
"""

from collections.abc import Iterator, Sequence

from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Refuse
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, QueuedProgram

_LEAST_NS = 10 * NANOSECONDS_PER_SECOND  # before it comes again: who is refused is many


def shed(ledger: Ledger, order: Sequence[QueuedProgram], overdue_ns: int, now_ns: int) -> Iterator[Refuse]:
    """Refuse newcomers that would wait too long; the others' waits are noted, to see how good the forecast is.

    ``order``: those that wait, whoever goes first in front. A place late in it is not forever: who has waited for
    ``overdue_ns`` goes before all that came later (0: the order itself sees to that).
    """
    each_ns, newcomers, programs = ledger.estimates.departures.each_ns, ledger.gates.newcomers, ledger.programs
    came = {name: place for place, name in enumerate(programs.queue)}
    gone = 0
    for place, waiting in enumerate(order):
        until_ns = newcomers.get(waiting.program_id)
        program = programs.by_name.get(waiting.program_id)
        if until_ns is None or program is None or program.turn_index or waiting.program_id not in came:
            continue
        ahead = place + 1 - gone
        wait_ns = ahead * each_ns
        if overdue_ns:
            waited_ns = now_ns - waiting.queued_at_ns
            came_ns = max(overdue_ns - waited_ns, (came[waiting.program_id] + 1 - gone) * each_ns)
            wait_ns = min(wait_ns, came_ns)
        late_ns = round(wait_ns) - (until_ns - now_ns)
        if late_ns <= 0:
            program.promised_ns = max(1, now_ns - waiting.queued_at_ns + round(wait_ns))
            continue
        gone += 1
        seconds = wait_ns / NANOSECONDS_PER_SECOND
        why = f"{ahead - 1} programs are before it: about {seconds:.0f} s to wait"
        yield Refuse(
            program_id=waiting.program_id, ttl_ns=max(_LEAST_NS, late_ns), code="expected_wait", reason=why
        )
