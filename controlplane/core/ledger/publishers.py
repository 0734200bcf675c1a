"""Who tells the ledger what: numbered events, restarts, and publishers that are gone.

An engine and a gate exist once at their place, ``node/role``. A new boot there is a restart, but only silence tells
that the old one is gone: whoever still speaks is alive, and holds what it held (docs/adr/0009). Engines that serve
together differ in their role, as ``engine-30000`` and ``engine-30001`` by their ports, and so do the gates before
them, ``gate-30000`` and ``gate-30001`` (docs/adr/0018). Agents' hooks are many at a place.
"""

from typing import TYPE_CHECKING

from controlplane.core import events as ev
from controlplane.core.events import place_of, serves
from controlplane.core.ledger.hearing import Arrival, Sequence
from controlplane.core.types import Tier, seconds

if TYPE_CHECKING:
    from controlplane.core.ledger import Ledger

_LEASE_NS = seconds(5)  # a boot that was heard within it lives, whoever else speaks from its place


def is_new(ledger: "Ledger", event: ev.Event, now_ns: int) -> bool:
    """Whether a numbered event is to be applied. Duplicates and gaps are counted, and a gap is asked about."""
    state = ledger.state
    sequence = state.sequences.get(event.publisher)
    if sequence is None:
        sequence = state.sequences[event.publisher] = Sequence(heard_at_ns=now_ns)
        if serves(event.publisher):
            retire_replaced(ledger, now_ns)
    sequence.heard_at_ns = now_ns
    sequence.unanswered = 0
    arrival = sequence.note(event.sequence)
    if arrival is Arrival.NEW:
        return True
    if arrival is Arrival.DUPLICATE:
        state.counts.duplicates += 1
        return False
    state.counts.gaps += 1
    ledger.resync[event.publisher] = 0
    return True


def retire_replaced(ledger: "Ledger", now_ns: int) -> None:
    """Forget boots of an engine or a gate that went silent while a later one speaks: they hold nothing any more.

    One that speaks again was alive: it is a new publisher with a gap, and is asked for its state.
    """
    sequences = ledger.state.sequences
    singles = sorted(filter(serves, sequences), key=lambda name: sequences[name].heard_at_ns)
    latest = {place_of(name): name for name in singles}  # the last one of a place stays
    for old in singles:
        place = place_of(old)
        if latest[place] != old and now_ns - sequences[old].heard_at_ns >= _LEASE_NS:
            ledger.forget_publisher(old, now_ns)
            node, _, role = place.rpartition("/")
            # A gate is a part of its engine's server. The pool stays until it is told anew.
            _forget_contexts(ledger, f"{node}/engine{''.join(role.partition('-')[1:])}")


def _forget_contexts(ledger: "Ledger", replica: str) -> None:
    """The replica holds no KV any more; nor does anybody for programs that never ran."""
    for program in ledger.programs.values():
        if program.replica in (replica, ""):
            program.retained_until_ns = 0
            program.kv_tier = Tier.NONE


def worth_asking(ledger: "Ledger") -> set[str]:
    """Publishers that a held turn, a running turn or a tool call depends on, and each of several engines."""
    state = ledger.state
    tables = (state.held, state.running, state.tools)
    named = {work.publisher for table in tables for work in table.values()}
    if len(state.pools) > 1:
        named |= {sample.publisher for sample in state.pools.values()}
    return named & state.sequences.keys()


def lose(ledger: "Ledger", publisher: str, now_ns: int) -> None:
    """The publisher is gone. An engine's memory goes with it, unless it is the last that was known."""
    ledger.forget_publisher(publisher, now_ns)
    place, pools = place_of(publisher), ledger.state.pools
    if len(pools) > 1 and place in pools:
        del pools[place]
        ledger.hear_pools()
        _forget_contexts(ledger, place)
