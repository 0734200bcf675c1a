"""Keep a program where its KV is unless leaving costs less; place a new one where there is most room.

**Paper**: AgentServeSim §3.3, the Session-Aware Router: affinity, and where the program's own engine has no
capacity wait there, migrate the KV, or compute it anew elsewhere. ThunderAgent §4.3.2: who was paused may go
anywhere. MORI §4.3.1: those without KV go where there is the most available capacity, those with a copy on a host
stay with it. What a move should cost is ours (docs/adr/0018).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Replica, Tier
from controlplane.core.policies.placement.cost import is_resident, loss_ns, wait_ns
from controlplane.core.policies.protocols import Choice, NextTurn, NoState, Placed, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(NoState):
    """``link_tokens_per_s``: tokens' KV that one engine sends another in a second; 0: none is sent.

    ``hard``: a context that an engine still has on its device is never left either, however crowded it is there.
    ``turns_ahead``: for so many turns an engine whose programs ask for too much is taken to stay that crowded. A
    move is paid once, and crowding at each turn.
    ``passing_wait``: the share of a wait for room that counts where the turn comes after a tool. What waits there
    now will mostly have run by then, so that it tells little of the turn's own wait.
    """

    link_tokens_per_s: float = 0.0
    hard: bool = False
    turns_ahead: float = 12.0
    passing_wait: float = 0.0

    def __post_init__(self) -> None:
        require("link_tokens_per_s", self.link_tokens_per_s, low=0, high=1e15)
        require("turns_ahead", self.turns_ahead, low=0, high=1000)
        require("passing_wait", self.passing_wait, low=0, high=1)

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Stateless, Placed]:
        return state, self._placed(turn, replicas, facts, now_ns)

    def _placed(self, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int) -> Placed:
        counted = 1.0 if turn.held else self.passing_wait

        def crowding_ns(replica: Replica) -> int:
            waiting_ns = round(counted * wait_ns(turn, replica, facts, now_ns)) if counted else 0
            return waiting_ns + round(self.turns_ahead * loss_ns(turn, replica, facts))

        resident, recompute_ns = is_resident(turn), facts.prefill_ns(turn.reusable_tokens)
        home = next((each for each in replicas if each.name == turn.program.replica), None)
        costs_ns: dict[Choice, int] = {}
        if home is None:
            there = max(replicas, key=lambda each: (each.room_blocks, -each.turns))
            there_ns = crowding_ns(there)
        else:
            crowded_ns = crowding_ns(home)
            costs_ns[Choice.STAY] = crowded_ns + (0 if resident else recompute_ns)
            others = [(crowding_ns(each), each) for each in replicas if each is not home] if crowded_ns else []
            if not others or (resident and self._binds(turn)):  # its capacity permits: nothing is cheaper
                return Placed(replica=home.name, choice=Choice.STAY, costs_ns=costs_ns)
            there_ns, there = min(others, key=lambda found: (found[0], -found[1].room_blocks))
        if not turn.program.replica:
            costs_ns[Choice.NEW] = there_ns
        else:  # a context that is resident where no turn may go any more lies on an engine that drains
            if turn.may_move and resident and turn.program.kv_tier is Tier.HBM and self.link_tokens_per_s:
                move_ns = round(turn.reusable_tokens * NANOSECONDS_PER_SECOND / self.link_tokens_per_s)
                costs_ns[Choice.MIGRATE] = there_ns + move_ns
            costs_ns[Choice.REPREFILL] = there_ns + recompute_ns
        choice = min(costs_ns, key=costs_ns.__getitem__)
        stays = choice is Choice.STAY
        return Placed(replica=turn.program.replica if stays else there.name, choice=choice, costs_ns=costs_ns)

    def _binds(self, turn: NextTurn) -> bool:
        """Whether a context that is there is not left: one in its host's memory never is (MORI §4.3.1)."""
        return self.hard or turn.program.kv_tier is Tier.HOST
