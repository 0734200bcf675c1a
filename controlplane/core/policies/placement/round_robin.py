"""Send each turn to the next replica, whichever program it belongs to.

**Paper**: AgentServeSim §6.1, a baseline: it spreads the load, and the turns of one program over all caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Replica
from controlplane.core.policies.placement.cost import sent_to
from controlplane.core.policies.protocols import NextTurn, Placed


@dataclass(frozen=True, slots=True)
class Turned:
    """The replica that the last turn went to."""

    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """In the order of their names, so that replicas may come and go."""

    def initial(self) -> Turned:
        return Turned()

    def place(
        self, state: Turned, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Turned, Placed]:
        following = next((each for each in replicas if each.name > state.last), replicas[0])
        return Turned(following.name), sent_to(turn, following, facts, now_ns)
