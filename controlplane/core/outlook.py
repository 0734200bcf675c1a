"""What the ledger's programs will come to need, and what acting ones need less: sums that policies decide on."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from controlplane.core.forecast import Growing
from controlplane.core.idleness import weight
from controlplane.core.ledger import Ledger
from controlplane.core.ledger.programs import Charges
from controlplane.core.ledger.turns import Load
from controlplane.core.types import Program, Replica
from controlplane.core.usual import Usual

_MOST_FORECAST = 256  # programs that the forecast looks at


def running_blocks(ledger: Ledger) -> int:
    """What the turns that the engine has are projected to need."""
    return sum(turn.blocks for turn in ledger.turns.running.values())


def growing(ledger: Ledger) -> list[Growing]:
    """The active programs but for those that lend; of very many a sample, each standing for others.

    This is most of what an admission costs among many programs (bench/controller_tick.py, ``one_more_ms``), hence
    what programs of one class have in common is looked up once.
    """
    programs, usual = ledger.programs.by_name, Usual(ledger.estimates)
    every = max(1, len(ledger.programs.active) // _MOST_FORECAST)
    found = []
    for name in islice(ledger.programs.active, 0, None, every):
        program = programs[name]
        if program.lends:
            continue  # it gives its slot back as soon as somebody needs it
        blocks, last, lifetimes = usual.active(program)
        found.append(Growing(blocks * every, last * every, lifetimes))
    return found


def replicas(ledger: Ledger, less: Mapping[str, float] = MappingProxyType({})) -> list[Replica]:
    """The engines that were heard, by name; so much ``less`` is demanded of each. O(replicas) for several."""
    charges, load, shared = ledger.programs.charges, ledger.turns.load, ledger.programs.shared_blocks
    if not charges.several:
        charges = Charges.of(ledger.programs.by_name, several=True)
        load = Load.of(ledger.turns.running.values())
    placed, charged = charges.placed, charges.placed_blocks
    return [
        Replica(
            name=name,
            total_blocks=pool.total_blocks,
            free_blocks=pool.free_blocks,
            evictable_blocks=pool.evictable_blocks,
            retained_blocks=pool.retained_blocks,
            host_total_blocks=pool.host_total_blocks,
            host_used_blocks=pool.host_used_blocks,
            demand_blocks=max(0, charged[name] + (shared if placed[name] else 0) - round(less.get(name, 0))),
            turns=load.turns[name],
            turn_blocks=load.blocks[name],
        )
        for name, pool in sorted(ledger.engines.pools.items())
    ]


def engines(ledger: Ledger) -> list[Replica]:
    """``replicas`` as a turn is placed on one: who lends its room lies there still, and would be evicted."""
    return replicas(ledger, {name: -blocks for name, blocks in ledger.programs.charges.placed_lent_blocks.items()})


def parts(ledger: Ledger, half_life_ns: int, now_ns: int) -> tuple[Replica, ...]:
    """Each of several engines' part of the demand as ``demand_blocks`` counts it.

    Who holds a slot and has not run yet is charged to the engine with the most room: there it will be placed.
    """
    less: dict[str, float] = defaultdict(float)
    for name in ledger.programs.active if half_life_ns else ():
        program = ledger.programs.by_name[name]
        less[program.replica] += _faded(program, half_life_ns, now_ns)
    found = replicas(ledger, less)
    charges = ledger.programs.charges
    homeless = charges.demand_blocks - sum(charges.placed_blocks[name] for name in ledger.engines.pools)
    if homeless:
        most = max(range(len(found)), key=lambda i: found[i].room_blocks)
        found[most] = replace(found[most], demand_blocks=found[most].demand_blocks + homeless)
    return tuple(found)


def demand_blocks(ledger: Ledger, half_life_ns: int, now_ns: int) -> int:
    """D: what the active programs need resident, a shared prefix once.

    An acting program counts by half after each ``half_life_ns`` that it has acted (ThunderAgent §4.3.1, eq. 7).
    0: it counts whole.
    """
    whole = ledger.programs.demand_blocks
    if not half_life_ns:
        return whole
    less = 0.0
    for name in ledger.programs.active:
        program = ledger.programs.by_name[name]
        less += _faded(program, half_life_ns, now_ns)
    return max(0, whole - round(less))


def _faded(program: Program, half_life_ns: int, now_ns: int) -> float:
    """What an acting program counts less, of what is its own and counted."""
    if program.lends:
        return 0.0
    return (program.kv_blocks - program.shared_blocks) * (1 - weight(program, half_life_ns, now_ns))
