"""Programs that hold a slot which nobody granted, and what becomes of them.

A gate that lost its daemon lets programs in by itself, so that the window may be overfull when the daemon is back.
Who came in that way gives its slot back at the end of its turn, the last arrived first, until the others fit. A
slot that was granted is not taken back because the window becomes small.

**Paper**: MARS §4.2 has no gate without a daemon, and never revokes; this is ours (docs/adr/0010).
"""

from controlplane.core.ledger import Ledger


def leaving(ledger: Ledger, limit: int) -> list[str]:
    """The roots that must give their slot back, the last arrived first. ``limit`` 0 means no limit.

    Those that fit keep their slots for good. Nobody need leave where no gate holds anything.
    """
    unasked, programs = ledger.state.unasked, ledger.programs
    excess = ledger.totals.active_roots - limit if limit else 0
    if excess <= 0:
        unasked.clear()
    if not unasked or not (ledger.state.gated or ledger.askers):
        return []
    by_arrival = sorted(unasked, key=lambda name: programs[name].arrived_at_ns, reverse=True)
    return by_arrival[:excess]


def may_leave_now(ledger: Ledger, root_id: str) -> bool:
    """Whether no turn of the root or of its children is in the engine, and the gate would hold the next one.

    While turns without a grant run all the same there is no gate, or it is open still: to take a slot back then
    would change nothing but the books.
    """
    if not ledger.state.gated:
        return False
    family = (root_id, *ledger.children_of(root_id))
    return not any(ledger.programs[name].open_turns for name in family)
