"""Send each turn to the replica with the fewest turns, and among equals to the one with the most free blocks.

**Paper**: AgentServeSim §6.1, a baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Replica
from controlplane.core.policies.placement.cost import sent_to
from controlplane.core.policies.protocols import NextTurn, NoState, Placed, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded(NoState):
    """Turns count whether they wait or run; free blocks are as the latest sample told."""

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Stateless, Placed]:
        least = min(replicas, key=lambda each: (each.turns, -each.free_blocks))
        return state, sent_to(turn, least, facts, now_ns)
