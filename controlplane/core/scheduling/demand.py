"""What the ledger's programs will come to need, and what acting ones need less: sums that policies decide on."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from controlplane.core.estimators.idleness import Decay
from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.ledger import Ledger
from controlplane.core.ledger.engine_turns import EngineLoad
from controlplane.core.ledger.engines import Summed
from controlplane.core.ledger.programs import Charges
from controlplane.core.model.types import Program, Replica

_MOST_FORECAST = 256  # programs that the forecast looks at


def sample_weight(ledger: Ledger) -> int:
    """How many of the active programs each that the forecast looks at stands for."""
    return max(1, len(ledger.programs.active) // _MOST_FORECAST)


def growth(ledger: Ledger, *, returning: bool = False) -> list[tuple[float, float, float]]:
    """The active programs but for those that lend, each as ``Growing``; of very many a sample that stands for all.

    ``returning``: with parents that wait for their children, who come back for certain.

    This is most of what an admission costs among many programs (bench/controller_tick.py, ``one_more_ms``), hence
    plain tuples, and what programs of one class have in common is looked up once.
    """
    programs, active, forecast = (
        ledger.programs.by_name,
        ledger.programs.active,
        ProgramForecaster(ledger.estimates).active,
    )
    every = sample_weight(ledger)
    sample = (programs[name] for name in islice(active, 0, None, every))
    # Who lends gives its slot back as soon as somebody needs it.
    found = [forecast(program) for program in sample if not program.lends or (returning and program.delegating)]
    return [(blocks * every, last * every, lifetimes) for blocks, last, lifetimes in found] if every > 1 else found


def replicas(ledger: Ledger) -> list[Replica]:
    """The engines that were heard, by name. Of several only those are summed up anew that something changed on."""
    if ledger.programs.charges.several:
        return list(_summed(ledger).plain.values())
    charges = Charges.of(ledger.programs.by_name, several=True)
    load, shared = EngineLoad.of(ledger.turns.running.values()), ledger.programs.shared_blocks
    return [_replica(ledger, name, charges, load, shared) for name in sorted(ledger.engines.pools)]


def engines(ledger: Ledger) -> Mapping[str, Replica]:
    """Several, by name, as a turn is placed on one: who lends its room lies there still, and would be evicted."""
    return _summed(ledger).lent


def _replica(ledger: Ledger, name: str, charges: Charges, load: EngineLoad, shared: int) -> Replica:
    pool = ledger.engines.pools[name]
    return Replica(
        name=name,
        total_blocks=pool.total_blocks,
        free_blocks=pool.free_blocks,
        evictable_blocks=pool.evictable_blocks,
        retained_blocks=pool.retained_blocks,
        host_total_blocks=pool.host_total_blocks,
        host_used_blocks=pool.host_used_blocks,
        demand_blocks=charges.demanded_of(name, shared),
        turns=load.turns[name],
        turn_blocks=load.blocks[name],
        draining=not ledger.engines.takes(name),
    )


def _summed(ledger: Ledger) -> Summed:
    """What several engines are charged with. An event changes one of them, a tick asks for all: so it is kept."""
    engines, charges, load = ledger.engines, ledger.programs.charges, ledger.turns.load
    shared, summed = ledger.programs.shared_blocks, engines.summed
    touched: Iterable[str]
    if summed.made_of != (engines.changes, shared) or summed.charges is not charges or summed.load is not load:
        summed = engines.summed = Summed(made_of=(engines.changes, shared), charges=charges, load=load)
        touched = sorted(engines.pools)
    else:
        touched = (charges.touched | load.touched | engines.touched) & engines.pools.keys()
    for each in (charges, load, engines):
        each.touched.clear()
    for name in touched:
        plain = summed.plain[name] = _replica(ledger, name, charges, load, shared)
        charged = charges.placed_blocks[name]
        summed.placed_blocks += charged - summed.charged_blocks.get(name, 0)
        summed.charged_blocks[name] = charged
        lent = charges.placed_lent_blocks[name]
        summed.lent[name] = replace(plain, demand_blocks=charges.demanded_of(name, shared, lent)) if lent else plain
    return summed


def engine_demand(ledger: Ledger, decay: Decay | None, now_ns: int) -> tuple[Replica, ...]:
    """Each of several engines' part of the demand as ``demand_blocks`` counts it.

    Who holds a slot and has not run yet is charged to the engine with the most room: there it will be placed.
    """
    found, charges = replicas(ledger), ledger.programs.charges
    if decay is not None:
        less: dict[str, float] = defaultdict(float)
        for name in ledger.programs.active:
            program = ledger.programs.by_name[name]
            less[program.replica] += _faded(program, decay, now_ns)
        shared = ledger.programs.shared_blocks
        for place, each in enumerate(found):
            if by := round(less[each.name]):
                found[place] = replace(each, demand_blocks=charges.demanded_of(each.name, shared, -by))
    if unplaced := charges.demand_blocks - ledger.engines.summed.placed_blocks:
        most = max(range(len(found)), key=lambda i: (not found[i].draining, found[i].room_blocks))
        found[most] = replace(found[most], demand_blocks=found[most].demand_blocks + unplaced)
    return tuple(found)


def demand_blocks(ledger: Ledger, decay: Decay | None, now_ns: int) -> int:
    """D: what the active programs need resident, a shared prefix once.

    ``decay``: by which an acting program counts less (ThunderAgent §4.3.1, eq. 7); None: it counts whole.
    """
    whole = ledger.programs.demand_blocks
    if decay is None:
        return whole
    less = 0.0
    for name in ledger.programs.active:
        program = ledger.programs.by_name[name]
        less += _faded(program, decay, now_ns)
    return max(0, whole - round(less))


def _faded(program: Program, decay: Decay, now_ns: int) -> float:
    """What an acting program counts less, of what is its own and counted."""
    if program.lends:
        return 0.0
    return (program.kv_blocks - program.shared_blocks) * (1 - decay.weight(program, now_ns))
