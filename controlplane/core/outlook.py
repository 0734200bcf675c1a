"""What the ledger's programs will come to need, and what acting ones need less: sums that policies decide on."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from controlplane.core.forecast import Growing
from controlplane.core.ledger import Ledger
from controlplane.core.lives import class_of
from controlplane.core.records import Totals
from controlplane.core.types import Program, Replica
from controlplane.core.weight import weight

_MOST_FORECAST = 256  # programs that the forecast looks at
_SHRINK_TURNS = 4.0  # turns of its class that a program's own ones are weighed against


def running_blocks(ledger: Ledger) -> int:
    """What the turns that the engine has are projected to need."""
    return sum(turn.blocks for turn in ledger.state.running.values())


def growing(ledger: Ledger) -> list[Growing]:
    """The active programs but for those that lend; of very many a sample, each standing for others.

    This is most of what an admission costs among many programs (bench/controller_tick.py, ``one_more_ms``), hence
    what programs of one class have in common is looked up once.
    """
    programs, usual = ledger.programs, Usual(ledger)
    every = max(1, len(ledger.active) // _MOST_FORECAST)
    found = []
    for name in islice(ledger.active, 0, None, every):
        program = programs[name]
        if program.lends:
            continue  # it gives its slot back as soon as somebody needs it
        grown, lifetimes = usual.ahead(program, program.kv_blocks)
        own = max(1, program.kv_blocks) - program.shared_blocks
        found.append(Growing(own * every, (own + grown) * every, lifetimes))
    return found


class Usual:
    """What programs of a class have in common, looked up once for all that are asked about at one time."""

    def __init__(self, ledger: Ledger) -> None:
        self._lives = lives = ledger.estimates.lives
        self._block_tokens = ledger.estimates.block_tokens
        self._shared_blocks = ledger.shared_blocks
        self._lifetime_ns = max(1.0, lives.turns_left("", 0) * lives.cycle_ns(""))  # when nobody is held
        self._of_kind: dict[str, tuple[float, float]] = {}
        self._left: dict[tuple[str, int], float] = {}

    def ahead(self, program: Program, held_blocks: int) -> tuple[float, float]:
        """By how many blocks the program will grow, and in how many lifetimes it will have ended.

        Its own pace and growth so far are shrunk to its class's. In its first turn it is taken to be of the class
        that ``held_blocks``, which it asked for, tell.
        """
        first_tokens = program.first_tokens or held_blocks * self._block_tokens
        kind = program.kind or class_of(program.tenant, program.agent, first_tokens)
        if kind not in self._of_kind:
            tokens = self._lives.tokens_a_turn(kind, first_tokens)
            self._of_kind[kind] = (tokens, self._lives.cycle_ns(kind) or 1.0)
        turns, (tokens, cycle_ns) = program.turn_index, self._of_kind[kind]
        left = self._left.get((kind, turns))
        if left is None:
            left = self._left[kind, turns] = self._lives.turns_left(kind, turns)
        grown = program.peak_tokens - program.first_tokens + _SHRINK_TURNS * tokens
        paced_ns = sum(program.cycles) + _SHRINK_TURNS * cycle_ns
        growth = grown / (max(0, turns - 1) + _SHRINK_TURNS)
        pace_ns = paced_ns / (len(program.cycles) / 2 + _SHRINK_TURNS)
        return left * growth / self._block_tokens, left * pace_ns / self._lifetime_ns

    def waiting(self, program: Program) -> Growing:
        """What a program that waits will need; what it shares with the others is held already."""
        held = max(1, program.queued_blocks)
        grown, lifetimes = self.ahead(program, held)
        own = held - min(held, self._shared_blocks)
        return Growing(own, own + grown, lifetimes)

    def expected_tokens(self, program: Program) -> int:
        """What the longest context of a program that waits is forecast to be."""
        shared = min(max(1, program.queued_blocks), self._shared_blocks)
        return round((self.waiting(program).last + shared) * self._block_tokens)


def replicas(ledger: Ledger, less: Mapping[str, float] = MappingProxyType({})) -> list[Replica]:
    """The engines that were heard, by name; so much ``less`` is demanded of each. O(replicas) for several."""
    totals, shared = ledger.totals, ledger.shared_blocks
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
            host_used_blocks=pool.host_used_blocks,
            demand_blocks=max(0, charged[name] + (shared if placed[name] else 0) - round(less.get(name, 0))),
            turns=totals.open_turns[name],
            turn_blocks=totals.open_blocks[name],
        )
        for name, pool in sorted(ledger.state.pools.items())
    ]


def engines(ledger: Ledger) -> list[Replica]:
    """``replicas`` as a turn is placed on one: who lends its room lies there still, and would be evicted."""
    return replicas(ledger, {name: -blocks for name, blocks in ledger.totals.placed_lent_blocks.items()})


def parts(ledger: Ledger, half_life_ns: int, now_ns: int) -> tuple[Replica, ...]:
    """Each of several engines' part of the demand as ``demand_blocks`` counts it.

    Who holds a slot and has not run yet is charged to the engine with the most room: there it will be placed.
    """
    less: dict[str, float] = defaultdict(float)
    for name in ledger.active if half_life_ns else ():
        program = ledger.programs[name]
        less[program.replica] += _faded(program, half_life_ns, now_ns)
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
        less += _faded(program, half_life_ns, now_ns)
    return max(0, whole - round(less))


def _faded(program: Program, half_life_ns: int, now_ns: int) -> float:
    """What an acting program counts less, of what is its own and counted."""
    if program.lends:
        return 0.0
    return (program.kv_blocks - program.shared_blocks) * (1 - weight(program, half_life_ns, now_ns))
