"""Who tells the ledger what: numbered events, restarts, and publishers that are gone.

An engine and a gate exist once at their place, ``node/role``: a new boot replaces the old one (docs/adr/0009).
Engines that serve together differ in their role, ``engine-1`` and ``engine-2``, and so do the gates before them,
``gate-1`` and ``gate-2`` (docs/adr/0018). Agents' hooks are many at a place.
"""

from typing import TYPE_CHECKING

from controlplane.core import events as ev
from controlplane.core.events import place_of
from controlplane.core.sequence import Arrival, Sequence
from controlplane.core.types import Tier

if TYPE_CHECKING:
    from controlplane.core.ledger import Ledger

_MOST_RETIRED = 64
_SINGLE_ROLES = frozenset({"engine", "gate"})


def is_new(ledger: "Ledger", event: ev.Event, now_ns: int) -> bool:
    """Whether a numbered event is to be applied. Duplicates and gaps are counted, and a gap is asked about."""
    state = ledger.state
    sequence = state.sequences.get(event.publisher)
    if sequence is None:
        if event.publisher in state.retired:
            state.counts.late += 1
            return False
        sequence = state.sequences[event.publisher] = Sequence()
        _replace_boot(ledger, event.publisher, now_ns)
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


def _replace_boot(ledger: "Ledger", publisher: str, now_ns: int) -> None:
    """A restarted engine or gate holds nothing of what its last boot held; the pool stays until it is told anew."""
    place = place_of(publisher)
    node, _, role = place.rpartition("/")
    kind, hyphen, own = role.partition("-")
    if kind not in _SINGLE_ROLES:
        return
    retired = ledger.state.retired
    engine = f"{node}/engine{hyphen}{own}"  # a gate is a part of its engine's server
    for old in [name for name in ledger.state.sequences if name != publisher and place_of(name) == place]:
        ledger.forget_publisher(old, now_ns)
        retired[old] = None  # what it sent last may still arrive
        _forget_contexts(ledger, engine)
    while len(retired) > _MOST_RETIRED:
        del retired[next(iter(retired))]


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
