"""What no order of programs can beat: a lower bound on makespan and on the mean of completion times.

A turn's tokens that nothing can have cached are prefilled, and its output is decoded: that is engine time, of which
``replicas`` engines have one second each a second. A step's fixed cost is shared: a prefill step's by at most a
chunk of tokens, a decode step's by at most ``max_running`` turns, or by turns that fit the pool together, each
then bearing at least its part of the pool. While a turn decodes its own tokens are held: memory, of which there is
a pool an engine. In each gap some first part of the context is held to its end (tokens times the gap), or none, and
what is not is computed again; the cheapest split is found at a point of the prefill curve, as the cost is linear
between them. Nothing else is counted, so every run takes at least these two sums.

For any weight w from 0 to 1 a run that ends by time T has used at most T of ``w * engine + (1 - w) * memory``, both
over what there is of them in a second: hence T is at least the sum over programs of that mixture, each gap at its
cheapest. So one machine that serves such mixtures one after the other is a relaxation of the node, and shortest
remaining processing time leaves fewer unfinished at every time than any other order there (Schrage 1968): no run
has its k-th completion before that order's. Nor before the k-th smallest of each program's arrival plus its time
alone. The mean over k of the greatest of these bounds, less the mean arrival, is a bound on the mean JCT.

A program's sub-agents are part of it: their work is its own, and their time alone is if it waits for them.

With tiers below the device gaps count nothing, as a context may come back from there. Programs that no engine could
run count nothing either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.hardware import PS, Profile
from controlplane.lab.workload.families import Family, families
from controlplane.lab.workload.trace import ProgramTrace, Turn, gap_ns, reusable_tokens

_WEIGHTS = np.linspace(0.0, 1.0, 17)
_NS_PER_S = 1e9
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """In seconds. ``work_s``: of the scarcer of engine and memory, the mean of a program."""

    makespan_s: float
    jct_mean_s: float
    work_s: float

    @property
    def rate(self) -> float:
        """Programs a second that no order can sustain more of."""
        return 1 / self.work_s if self.work_s else 0.0


def bound(
    programs: Sequence[ProgramTrace],
    engine: EngineSpec,
    shared_tokens: int = 0,
    arrivals_ns: Sequence[int] | None = None,
) -> Bound:
    """The bound for programs that arrive then; None: when is not known, and only their time alone bounds the mean.

    ``shared_tokens``: a prefix that all share.
    """
    roots = families(programs)
    at = [0] * len(roots) if arrivals_ns is None else arrivals_ns
    fitting = [
        (family, at_ns / _NS_PER_S)
        for family, at_ns in zip(roots, at, strict=True)
        if all(program.context_tokens <= engine.context_tokens for program in family)
    ]
    if not fitting:
        return Bound(makespan_s=0.0, jct_mean_s=0.0, work_s=0.0)
    node = _Node(engine, shared_tokens)
    arrivals = np.array([at_s for _, at_s in fitting])
    ideal = np.array([_family_ideal_s(family, node) for family, _ in fitting])
    work = np.array([sum(_work_s(program, node) for program in family) for family, _ in fitting])
    ends = np.sort(arrivals + ideal)
    if arrivals_ns is not None:
        for column in work.T:
            ends = np.maximum(ends, shortest_remaining(arrivals, column))
    sums = work.sum(axis=0)
    return Bound(
        makespan_s=float(max(ends[-1], sums.max() + arrivals.min())),
        jct_mean_s=float(ends.mean() - arrivals.mean()),
        work_s=float(sums.max() / len(fitting)),
    )


def engine_weight(programs: Sequence[ProgramTrace], engine: EngineSpec, shared_tokens: int = 0) -> float:
    """The weight that makes the bound greatest: the share of the scarcity that is the engine's, not memory's."""
    node = _Node(engine, shared_tokens)
    sums = sum((_work_s(program, node) for program in programs), np.zeros(2 * len(_WEIGHTS)))
    return float(_WEIGHTS[int(np.argmax(sums)) % len(_WEIGHTS)])


def shortest_remaining(arrivals: _Floats, work: _Floats) -> _Floats:
    """When jobs end on one machine that always serves the one with least left, ascending."""
    left: list[float] = []
    ends: list[float] = []
    now = 0.0
    order = np.argsort(arrivals, kind="stable")
    for place, job in enumerate(order):
        now = max(now, float(arrivals[job]))
        heappush(left, float(work[job]))
        until = float(arrivals[order[place + 1]]) if place + 1 < len(order) else np.inf
        while left and now + left[0] <= until:
            now += heappop(left)
            ends.append(now)
        if left:
            left[0] -= until - now
        now = until
    return np.array(ends)


@dataclass(frozen=True, slots=True)
class _Node:
    engine: EngineSpec
    shared_tokens: int

    @property
    def profile(self) -> Profile:
        return self.engine.profile


def _turns(program: ProgramTrace) -> list[tuple[Turn | None, Turn]]:
    return list(zip((None, *program.turns), program.turns, strict=False))


def _family_ideal_s(family: Family, node: _Node) -> float:
    """At least so long the root takes where each of the family has an engine of its own."""
    # Of sub-agents, by their parent and the turn that they begin behind.
    longest: dict[tuple[str, int], float] = {}
    ideal_s = 0.0
    for program in reversed(family):
        waits = {turn: wait for (name, turn), wait in longest.items() if name == program.program_id}
        ideal_s = _ideal_s(program, node)
        ideal_s += sum(max(0.0, wait - gap_ns(program.turns[turn]) / _NS_PER_S) for turn, wait in waits.items())
        key = (program.parent_id, program.spawn_turn)
        longest[key] = max(ideal_s, longest.get(key, 0.0))
    return ideal_s


def _ideal_s(program: ProgramTrace, node: _Node) -> float:
    """At least so long a program takes with an engine of its own, all that can be cached being so."""
    profile = node.profile
    ns = 0.0
    for before, turn in _turns(program):
        cached = max(reusable_tokens(before, turn), min(node.shared_tokens, turn.input_tokens - 1))
        ns += profile.turn_overhead_ns + _prefill_ns(profile, cached, turn.input_tokens) + profile.step_overhead_ns
        ns += profile.decode_ps(1, turn.input_tokens, turn.output_tokens - 1) / PS
    return (ns + sum(map(gap_ns, program.turns[:-1]))) / _NS_PER_S


def _work_s(program: ProgramTrace, node: _Node) -> _Floats:
    """The program's part of the mixture, for each weight: what its turns take, and its gaps at their cheapest."""
    by_count = by_size = memory = 0.0
    gaps = np.zeros(len(_WEIGHTS))
    for before, turn in _turns(program):
        shared = min(node.shared_tokens, turn.input_tokens - 1)
        reusable = reusable_tokens(before, turn)
        again, held = _gap(node, shared, reusable, gap_ns(before) if before is not None else 0)
        gaps += np.min(np.outer(_WEIGHTS, again) + np.outer(1 - _WEIGHTS, held), axis=1)
        computed = _prefill_share_ns(turn, max(shared, reusable), node)
        by_count += computed + _decode_ns(turn, 1 / node.engine.max_running, node)
        by_size += computed + _decode_ns(turn, (turn.input_tokens - shared) / node.engine.size_tokens, node)
        memory += _memory_ns(turn, shared, node)
    mixed = [_WEIGHTS * engine + (1 - _WEIGHTS) * memory + gaps for engine in (by_count, by_size)]
    return np.concatenate(mixed) / node.engine.replicas / _NS_PER_S


def _prefill_share_ns(turn: Turn, cached: int, node: _Node) -> float:
    """Prefill of what is not cached, in steps that carry a whole chunk."""
    fresh = max(0, turn.input_tokens - cached)
    steps = fresh / node.engine.chunk_tokens
    return _prefill_ns(node.profile, cached, turn.input_tokens) + node.profile.step_overhead_ns * steps


def _decode_ns(turn: Turn, share: float, node: _Node) -> float:
    """Its part of its decode steps, of whose fixed cost it bears a share."""
    profile, steps = node.profile, turn.output_tokens - 1
    others = profile.decode_base_ps * (1 - share)
    return (profile.decode_ps(1, turn.input_tokens, steps) - steps * others) / PS


def _memory_ns(turn: Turn, shared: int, node: _Node) -> float:
    """Its own tokens, held through decode steps that are no shorter than if it ran alone, over the pool."""
    return (
        (turn.input_tokens - shared)
        / node.engine.size_tokens
        * node.profile.decode_ps(1, turn.input_tokens, turn.output_tokens - 1)
        / PS
    )


def _gap(node: _Node, shared: int, reusable: int, gap: int) -> tuple[_Floats, _Floats]:
    """What each way through a gap costs: engine time to compute the rest again, and memory for what is held."""
    if reusable <= shared or node.engine.tiers:
        return np.zeros(1), np.zeros(1)
    points = [point for point in node.profile.prefill_tokens if shared < point < reusable]
    retained = [shared, *points, reusable]
    again = [float(_prefill_ns(node.profile, tokens, reusable, anew=False)) for tokens in retained]
    held = [(tokens - shared) / node.engine.size_tokens * gap for tokens in retained]
    return np.array(again), np.array(held)


def _prefill_ns(profile: Profile, start: int, end: int, *, anew: bool = True) -> int:
    """However it is cut into chunks: the curve's difference, and the last chunk's attention."""
    if end <= start:
        return 0
    curve = profile.cumulative_ns(end) - profile.cumulative_ns(start)
    return profile.prefill_ns(start, end - start) if anew else curve
