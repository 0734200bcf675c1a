"""The limits that clamp the raw window: W_cpu, and what the forecast may exceed.

**Paper**: MARS §4.2 and Algorithm 1 (CalcCpuLimit, CalcKvLimit), which name both and give no formula; ours are in
docs/explanation/how-it-decides.md. ``NO_CAP`` stands for a limit that cannot be computed yet.
"""

from math import floor

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Pressure
from controlplane.core.policies.facts import return_price

NO_CAP = 1 << 30
_LEAST_TOOLS_PER_PROGRAM = 0.05
MOST_RECOMPUTED = 0.5  # of the pool: so much more than it may be asked for where what goes has to be computed again
_LEAST_PRICE = 0.01  # of computing: below that all that fits is tolerated anyhow
_MARGIN = 8  # of what is displaced next, this power of the share kept so far is: memory that is full keeps no more


def cpu_cap(pressure: Pressure, *, always: bool = False) -> int:
    """Programs whose tools, at the usual tools per active program, just fill the CPUs.

    It counts a CPU a tool, and many tools only wait (for a network, a disk, a sleep): so it holds only while the
    host counts as overloaded, which is when CPUs are in fact scarce. ``always``: also otherwise.
    """
    holds = pressure.cpu_overloaded or always
    if not holds or pressure.cpus <= 0 or pressure.tools_per_program <= 0:
        return NO_CAP
    return max(1, floor(pressure.cpus / max(_LEAST_TOOLS_PER_PROGRAM, pressure.tools_per_program)))


def kv_cap(pressure: Pressure, soft_ratio: float = 0.0) -> int:
    """W_kv as a number: the active programs, and as many of those that wait as fit into what is left by their size.

    Below ``soft_ratio`` of the pool left, only that share of it which what is left is of ``soft_ratio`` may be
    filled: less and less, and never the last of it (§4.2, the progressive cap). What they will grow to is not asked
    (docs/adr/0005 tells what that costs).
    """
    if not pressure.kv_total_blocks or not pressure.queued_blocks_mean:
        return NO_CAP
    most = 0.0
    for demand, total in loads(pressure):
        left = max(0, total - demand)
        most = max(most, left * min(1.0, left / (soft_ratio * total)) if soft_ratio else left)
    return pressure.programs_active + floor(most / pressure.queued_blocks_mean)


def rooms(pressure: Pressure) -> tuple[int, ...]:
    """What each engine has left beside what the active programs need now, in blocks."""
    return tuple([total - demand if total > demand else 0 for demand, total in loads(pressure)])


def loads(pressure: Pressure) -> list[tuple[int, int]]:
    """Demand and pool, in blocks, of each engine that takes programs; of all together where none is told apart."""
    found = [
        (each.demand_blocks, each.total_blocks)
        for each in pressure.replicas
        if each.total_blocks and not each.draining
    ]
    return found or [(pressure.kv_demand_blocks, pressure.kv_total_blocks)]


def tolerated_excess(
    facts: Estimates, waste_ratio: float, below_ratio: float = 0.0, marginal_throughput: float = 1.0
) -> tuple[float, float]:
    """The shares by which the demand may exceed the pool over the time to come, and now (ADR 0019).

    What exceeds it is evicted, and that share of the turns computes its context again, which holds up all that run
    beside it; a turn's own part of the engine's time is what it takes there, shared with those. What is forecast
    may not come, so that less is tolerated now. 0 while nothing is known of what it costs.

    ``below_ratio``: memory below the device, in parts of the pool. As far as that keeps what is evicted, the price
    is to load it, not to compute it (ADR 0016).

    ``marginal_throughput``: the share of a turn's time that it would take alone. Only that much is gained by one
    more that runs, however long the turns that share the engine make it (ADR 0019).
    """
    recompute_ns = facts.recompute_ns * max(1.0, facts.turns_running)
    if not waste_ratio or recompute_ns <= 0:
        return 0.0, 0.0
    worth = waste_ratio * (marginal_throughput * facts.turn_service_ns / recompute_ns) ** 4
    later, now = min(MOST_RECOMPUTED, worth), min(MOST_RECOMPUTED, worth * worth)
    host_hit_ratio = facts.host_hit_ratio**_MARGIN
    if most := below_ratio * host_hit_ratio:
        worth /= max(_LEAST_PRICE, return_price(facts, host_hit_ratio)) ** 4
        later, now = max(later, min(most, worth)), max(now, min(most, worth * worth))
    return later, now
