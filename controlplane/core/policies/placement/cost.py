"""What it costs a turn, in time, to run on an engine: waiting for room, and computing again what is not there.

**Paper**: AgentServeSim §3.3 names three ways out when a program's own engine has no capacity, and asks that the
cost of the one taken be told; what they cost is ours (docs/explanation/fleet.md).
"""

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Replica, Tier
from controlplane.core.policies.protocols import Choice, NextTurn, Placed


def wait_ns(turn: NextTurn, replica: Replica, facts: Estimates, now_ns: int) -> int:
    """Until there is room for the turn: what lacks, at the rate at which turns that end give blocks back.

    Blocks that are retained for others are no room.
    """
    program, room = turn.program, replica.total_blocks - replica.retained_blocks
    if program.replica == replica.name and program.retained_until_ns > now_ns:
        room += min(program.kv_blocks, replica.retained_blocks)
    lacking = replica.turn_blocks + turn.blocks - room
    return facts.turn_service_ns * lacking // max(1, room) if lacking > 0 else 0


def loss_ns(turn: NextTurn, replica: Replica, facts: Estimates) -> int:
    """Computing again what the engine will have evicted of the context by the program's next turn.

    Where its programs ask for more than the pool holds, each is taken to lose the share that is too much.
    """
    program, demand = turn.program, replica.demand_blocks
    if program.replica != replica.name:
        demand += max(turn.blocks, program.kv_blocks)
    excess = demand - replica.total_blocks
    return facts.prefill_ns(turn.reusable_tokens) * excess // demand if excess > 0 else 0


def is_resident(turn: NextTurn) -> bool:
    """Whether the engine of its last turn still has the program's context, as far as was told.

    Of a program that lost its slot meanwhile it is taken to be evicted from the device (ThunderAgent §4.3.2).
    """
    tier = turn.program.kv_tier
    return tier is Tier.HOST or (tier is Tier.HBM and turn.program.warm)


def sent_to(turn: NextTurn, replica: Replica, facts: Estimates, now_ns: int) -> Placed:
    """The answer of a policy that weighs nothing, with what it costs all the same.

    An older copy of the context that lies on the other engine is not counted on.
    """
    cost_ns = wait_ns(turn, replica, facts, now_ns) + loss_ns(turn, replica, facts)
    if not turn.program.replica:
        choice = Choice.NEW
    elif turn.program.replica == replica.name:
        choice = Choice.STAY
    else:
        choice = Choice.REPREFILL
    if choice is Choice.REPREFILL or not is_resident(turn):
        cost_ns += facts.prefill_ns(turn.reusable_tokens)
    return Placed(replica=replica.name, choice=choice, costs_ns={choice: cost_ns})
