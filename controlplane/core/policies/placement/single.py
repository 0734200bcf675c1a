"""Use one replica, so that there is nothing to choose."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Replica
from controlplane.core.policies.placement.cost import sent_to
from controlplane.core.policies.protocols import NextTurn, NoState, Placed, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Single(NoState):
    """Always the first replica by name."""

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Stateless, Placed]:
        return state, sent_to(turn, replicas[0], facts, now_ns)
