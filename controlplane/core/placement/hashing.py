"""Send each program where a consistent hash of its name falls: nothing is asked of the engines.

A baseline: what a gateway without state does by a session's header (Envoy's ``ring_hash``, nginx's ``hash``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.facts import Facts
from controlplane.core.placement.cost import sent_to
from controlplane.core.policies import STATELESS, NextTurn, Placed, Stateless
from controlplane.core.rendezvous import weights_of
from controlplane.core.types import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Hash:
    """The engine of the largest weight takes it (``core.rendezvous``)."""

    def initial(self) -> Stateless:
        return STATELESS

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Facts, now_ns: int
    ) -> tuple[Stateless, Placed]:
        weight = weights_of(turn.program.program_id)
        return state, sent_to(turn, max(replicas, key=lambda each: weight(each.name)), facts, now_ns)
