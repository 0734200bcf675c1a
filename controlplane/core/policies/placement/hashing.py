"""Send each program where a consistent hash of its name falls: nothing is asked of the engines.

A baseline: what a gateway without state does by a session's header (Envoy's ``ring_hash``, nginx's ``hash``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Replica
from controlplane.core.policies.placement.cost import sent_to
from controlplane.core.policies.placement.rendezvous import weights_of
from controlplane.core.policies.protocols import NextTurn, NoState, Placed, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Hash(NoState):
    """The engine of the largest weight takes it (``rendezvous``)."""

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Stateless, Placed]:
        weight = weights_of(turn.program.program_id)
        return state, sent_to(turn, max(replicas, key=lambda each: weight(each.name)), facts, now_ns)
