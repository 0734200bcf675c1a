"""Load shedding: who would wait for longer than it can is told so as it comes, and not after it has waited.

Beyond what can be served somebody must go, and who has had no turn yet loses least. So newcomers pay, at the door:
one that cannot be served in the time that its client and its gate allow is refused, and told when to come again.
Programs that have begun are never refused for waiting.

**Paper**: none of those that are united here; CoDel and its kin shed by the time that is waited, as this does.
"""

from collections.abc import Iterator

from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Refuse
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, QueuedProgram

_LEAST_NS = 30 * NANOSECONDS_PER_SECOND  # before it comes again: who is refused is many
_SURE = 0.6  # of a newcomer's time: it is taken where it is expected to wait for less, and urgent after that


def shed(ledger: Ledger, now_ns: int) -> Iterator[Refuse]:
    """Refuse newcomers that would wait too long; the others' waits are noted, to see how good the forecast is.

    Who is small goes early, and makes the others wait for longer. So as many are taken as can be served in time one
    after the other, whatever the order is; and some fewer, since early ends are those of small programs.
    """
    newcomers, ledger.gates.newcomers = ledger.gates.newcomers, {}  # others may come in a pause
    if not newcomers:
        return
    each_ns, programs = ledger.estimates.departures.each_ns, ledger.programs
    places, gone = {name: place for place, name in enumerate(programs.queue, 1)}, 0
    for name, timeout_ns in newcomers.items():
        program = programs.by_name.get(name)
        if program is None or program.turn_index or name not in places:
            continue
        ahead = places[name] - gone
        wait_ns, sure_ns = round(ahead * each_ns), round(_SURE * timeout_ns)
        if not each_ns or wait_ns <= sure_ns:
            program.urgent_at_ns = now_ns + sure_ns
            program.promised_ns = now_ns - program.queued_at_ns + wait_ns if each_ns else 0
            continue
        gone += 1
        why = f"{ahead - 1} programs are before it: about {wait_ns / NANOSECONDS_PER_SECOND:.0f} s to wait"
        ttl_ns = max(_LEAST_NS, wait_ns - sure_ns)
        yield Refuse(program_id=name, ttl_ns=ttl_ns, code="expected_wait", reason=why)


def is_overdue(waiting: QueuedProgram, horizon_ns: int, now_ns: int, *, ages: bool) -> bool:
    """Whether it goes before the others: it has waited since ``horizon_ns``, or its deadline is near.

    ``ages``: the order itself brings those to its front that have been here for long, but not who has begun.
    """
    if 0 < waiting.urgent_at_ns <= now_ns:
        return True
    return waiting.queued_at_ns <= horizon_ns and (waiting.turn_index > 0 or not ages)
