"""What the ledger's programs will come to need, and what acting ones need less: sums that policies decide on."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from controlplane.core.forecast import Growing
from controlplane.core.ledger import Ledger
from controlplane.core.records import Totals
from controlplane.core.types import Replica
from controlplane.core.weight import weight

_MOST_FORECAST = 512  # programs that the forecast looks at


def shared_blocks(ledger: Ledger) -> int:
    """Blocks of the prefix that programs share."""
    return ledger.estimates.blocks(ledger.estimates.shared_tokens.value)


def growing(ledger: Ledger) -> list[Growing]:
    """The active programs; of very many a sample, each standing for its neighbours.

    This is most of what an admission costs among many programs, hence conditions where ``max`` would read better
    (bench/controller_tick.py, ``one_more_ms``).
    """
    growth, shared, programs = ledger.estimates.growth, shared_blocks(ledger), ledger.programs
    blocks = 1 / ledger.estimates.block_tokens
    lifetime, from_first = growth.lifetime_turns, growth.expected(1.0)
    usual = from_first - 1.0
    every = max(1, len(ledger.active) // _MOST_FORECAST)
    found = []
    for name in islice(ledger.active, 0, None, every):
        program = programs[name]
        held: float = program.kv_blocks if program.kv_blocks > 1 else 1.0
        first = program.first_tokens * blocks or held
        peak = program.peak_tokens * blocks
        if peak < held:
            peak = held
        reached = peak / first
        last = first * (from_first if reached == 1.0 else growth.expected(reached))  # beyond what it has reached
        a_turn = (peak - first) / program.turn_index if program.turn_index > 2 else first * usual / lifetime
        left = (last - held) / a_turn if a_turn > 0 else lifetime
        found.append(Growing((held - shared) * every, (last - shared) * every, left / lifetime))
    return found


def newcomer(ledger: Ledger) -> Growing:
    """Whoever waits, on average; what it shares with the others is held already. The queue is not empty."""
    first = ledger.totals.queued_blocks / len(ledger.queue)
    last = first * ledger.estimates.growth.expected(1.0)
    shared = min(first, shared_blocks(ledger))
    return Growing(first - shared, last - shared)


def replicas(ledger: Ledger, less: Mapping[str, float] = MappingProxyType({})) -> list[Replica]:
    """The engines that were heard, by name; so much ``less`` is demanded of each. O(replicas) for several."""
    totals, shared = ledger.totals, shared_blocks(ledger)
    if not totals.several:
        totals = Totals.of(ledger.state, several=True)
    placed, charged = totals.placed, totals.placed_blocks
    return [
        Replica(
            name=name,
            total_blocks=pool.total_blocks,
            free_blocks=pool.free_blocks,
            evictable_blocks=pool.evictable_blocks,
            retained_blocks=pool.retained_blocks,
            host_total_blocks=pool.host_total_blocks,
            demand_blocks=max(0, charged[name] - max(0, placed[name] - 1) * shared - round(less.get(name, 0))),
            turns=totals.open_turns[name],
            turn_blocks=totals.open_blocks[name],
        )
        for name, pool in sorted(ledger.state.pools.items())
    ]


def parts(ledger: Ledger, half_life_ns: int, now_ns: int) -> tuple[Replica, ...]:
    """Each of several engines' part of the demand as ``demand_blocks`` counts it.

    Who holds a slot and has not run yet is charged to the engine with the most room: there it will be placed.
    """
    less: dict[str, float] = defaultdict(float)
    for name in ledger.active if half_life_ns else ():
        program = ledger.programs[name]
        less[program.replica] += program.kv_blocks * (1 - weight(program, half_life_ns, now_ns))
    found = replicas(ledger, less)
    homeless = ledger.totals.demand_blocks - sum(ledger.totals.placed_blocks[name] for name in ledger.state.pools)
    if homeless:
        most = max(range(len(found)), key=lambda i: found[i].room_blocks)
        found[most] = replace(found[most], demand_blocks=found[most].demand_blocks + homeless)
    return tuple(found)


def demand_blocks(ledger: Ledger, half_life_ns: int, now_ns: int) -> int:
    """D: what the active programs need resident, a shared prefix once.

    An acting program counts by half after each ``half_life_ns`` that it has acted (ThunderAgent §4.3.1, eq. 7).
    0: it counts whole.
    """
    whole = ledger.demand_blocks
    if not half_life_ns:
        return whole
    less = 0.0
    for name in ledger.active:
        program = ledger.programs[name]
        less += program.kv_blocks * (1 - weight(program, half_life_ns, now_ns))
    return max(0, whole - round(less))
