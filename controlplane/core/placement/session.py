"""Keep a program where its KV is unless leaving costs less; place a new one where there is most room.

**Paper**: AgentServeSim §3.3, the Session-Aware Router: affinity, and where the program's own engine has no
capacity wait there, migrate the KV, or compute it anew elsewhere. ThunderAgent §4.3.2: who was paused may go
anywhere. MORI §4.3.1: those without KV go where there is the most available capacity, those with a copy on a host
stay with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.errors import require
from controlplane.core.facts import Facts
from controlplane.core.placement.cost import is_resident, loss_ns, wait_ns
from controlplane.core.policies import STATELESS, Choice, NextTurn, Placed, Stateless
from controlplane.core.types import NANOSECONDS_PER_SECOND, Replica, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """``link_tokens_per_s``: tokens' KV that one engine sends another in a second; 0: none is sent.

    ``hard``: a context that an engine or its host still has is never left, however crowded it is there (MORI).
    """

    link_tokens_per_s: float = 0.0
    hard: bool = False

    def __post_init__(self) -> None:
        require("link_tokens_per_s", self.link_tokens_per_s, low=0, high=1e15)

    def initial(self) -> Stateless:
        return STATELESS

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Facts, now_ns: int
    ) -> tuple[Stateless, Placed]:
        def crowding_ns(replica: Replica) -> int:
            return wait_ns(turn, replica, facts, now_ns) + loss_ns(turn, replica, facts)

        home = next((each for each in replicas if each.name == turn.program.replica), None)
        again_ns = facts.prefill_ns(turn.reusable_tokens)
        if home is None:
            best = max(replicas, key=lambda each: (each.room_blocks, -each.turns))
            choice = Choice.REPREFILL if turn.program.replica else Choice.NEW
            cost_ns = crowding_ns(best) + (again_ns if turn.program.replica else 0)
            return state, Placed(replica=best.name, choice=choice, costs_ns={choice: cost_ns})
        resident = is_resident(turn)
        crowded_ns = crowding_ns(home)
        costs_ns = {Choice.STAY: crowded_ns + (0 if resident else again_ns)}
        others = [(crowding_ns(each), each) for each in replicas if each is not home] if crowded_ns else []
        if not others or (self.hard and resident):  # its capacity permits: nothing is cheaper
            return state, Placed(replica=home.name, choice=Choice.STAY, costs_ns=costs_ns)
        there_ns, there = min(others, key=lambda found: (found[0], -found[1].room_blocks))
        if resident and turn.program.kv_tier is Tier.HBM and self.link_tokens_per_s:
            move_ns = round(turn.reusable_tokens * NANOSECONDS_PER_SECOND / self.link_tokens_per_s)
            costs_ns[Choice.MIGRATE] = there_ns + move_ns
        costs_ns[Choice.REPREFILL] = there_ns + again_ns
        choice = min(costs_ns, key=costs_ns.__getitem__)
        return state, Placed(
            replica=home.name if choice is Choice.STAY else there.name, choice=choice, costs_ns=costs_ns
        )
