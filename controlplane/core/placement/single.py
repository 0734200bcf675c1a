"""Use one replica, so that there is nothing to choose."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.facts import Facts
from controlplane.core.placement.cost import sent_to
from controlplane.core.policies import STATELESS, NextTurn, Placed, Stateless
from controlplane.core.types import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Always the first replica by name."""

    def initial(self) -> Stateless:
        return STATELESS

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Facts, now_ns: int
    ) -> tuple[Stateless, Placed]:
        return state, sent_to(turn, replicas[0], facts, now_ns)
