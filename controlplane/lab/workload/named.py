"""Workloads by name: a trace file, a synthetic one, several mixed, or one after another.

traces/a.jsonl.gz               a file
synthetic:five-kinds            drawn in code
mix:A+B+C                       equal numbers of each, in an order that a seed draws
mix:A*3+B                       three of A to one of B
change:A>B                      the first half of the programs from A, the second from B; either may be a mix
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.families import Family, all_of, families, renamed
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.trace import Trace, read_trace
from controlplane.lab.workload.trace_lines import THINK_TIME

SYNTHETIC, MIX, CHANGE = "synthetic:", "mix:", "change:"
_DEFAULT_PROGRAMS = 100  # programs of a workload that is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which programs. ``programs`` 0: all of a file, 100 of what is drawn; ``max_context_tokens`` 0: of any length.

    ``humans`` false: none in which a person's think time is a gap.
    """

    programs: int = 0
    max_context_tokens: int = 0
    seed: int = 0
    humans: bool = True


def named_workload(name: str, wanted: Wanted) -> Trace:
    """The workload of that name. Raises ``ConfigError``."""
    if name.startswith(CHANGE):
        return _change(name, wanted)
    if name.startswith(MIX):
        return _mix(name, wanted)
    if name.startswith(SYNTHETIC):
        drawn = synthesize(
            name.removeprefix(SYNTHETIC), programs=wanted.programs or _DEFAULT_PROGRAMS, seed=wanted.seed
        )
        return _within(drawn, wanted)
    all_of_it = None if not wanted.humans else wanted.programs or None
    trace = read_trace(name, max_programs=all_of_it, max_context_tokens=wanted.max_context_tokens or None)
    return _first(_within(trace, wanted), wanted.programs)


def _within(trace: Trace, wanted: Wanted) -> Trace:
    """The programs that are wanted; the others are told as rejected."""
    most, rejected, retained = wanted.max_context_tokens, list(trace.rejected), []
    for family in families(trace.programs):
        name = family[0].program_id
        if most and any(program.context_tokens > most for program in family):
            rejected.append(f"{name}: its context grows beyond {most} tokens")
        elif not wanted.humans and any(turn.tool == THINK_TIME for program in family for turn in program.turns):
            rejected.append(f"{name}: a person thinks between its turns")
        else:
            retained.append(family)
    if not retained:
        limit = f" within --max-context {most}" if most else ""
        raise ConfigError(f"{trace.name}: no program left{limit}" + ("" if wanted.humans else " without a person"))
    return replace(trace, programs=all_of(retained), rejected=rejected)


def _first(trace: Trace, programs: int) -> Trace:
    return replace(trace, programs=all_of(families(trace.programs)[:programs])) if programs else trace


def _mix(name: str, wanted: Wanted) -> Trace:
    """Of each part as its weight says, drawn and put in an order by the seed, under names of their own."""
    parts = [_weighed(part, name) for part in name.removeprefix(MIX).split("+")]
    total = sum(weight for _, weight in parts)
    each = wanted.programs * max(weight for _, weight in parts) // total + 1 if wanted.programs else 0
    traces = [
        named_workload(part, replace(wanted, programs=each if part.startswith(SYNTHETIC) else 0))
        for part, _ in parts
    ]
    weights = [weight for _, weight in parts]
    whole = [families(trace.programs) for trace in traces]
    unit = min(len(roots) / weight for roots, weight in zip(whole, weights, strict=True))
    count = wanted.programs or int(unit * total)
    rng = np.random.default_rng(wanted.seed)
    drawn: list[Family] = []
    for roots, number in zip(whole, _parts_of(count, weights), strict=True):
        order = [roots[place] for place in rng.permutation(len(roots))]
        drawn += islice(cycle(order), number)
    mixed = [drawn[place] for place in rng.permutation(len(drawn))]
    return _joined(mixed, traces, "+")


def _parts_of(count: int, weights: Sequence[int]) -> list[int]:
    """``count`` in whole parts as the weights say; the first parts get what is left over."""
    parts = [count * weight // sum(weights) for weight in weights]
    for place in range(count - sum(parts)):
        parts[place] += 1
    return parts


def _weighed(part: str, name: str) -> tuple[str, int]:
    text, _, weight = part.partition("*")
    if not text or text.startswith((MIX, CHANGE)) or (weight and not (weight.isdecimal() and int(weight))):
        raise ConfigError(f"{name}: expected mix:WORKLOAD+WORKLOAD*WEIGHT, got {part!r}", field="trace")
    return text, int(weight or 1)


def _change(name: str, wanted: Wanted) -> Trace:
    """The first half of one workload, then the second half of another."""
    before, _, after = name.removeprefix(CHANGE).partition(">")
    if not before or not after or before.startswith(CHANGE) or CHANGE in after:
        raise ConfigError(f"{name}: expected change:WORKLOAD>WORKLOAD", field="trace")
    half = wanted.programs // 2
    traces = [
        named_workload(before, replace(wanted, programs=wanted.programs - half)),
        named_workload(after, replace(wanted, programs=half, seed=wanted.seed + 1)),
    ]
    if not wanted.programs:
        fewest = min(len(families(trace.programs)) for trace in traces)
        traces = [_first(trace, fewest) for trace in traces]
    return _joined([family for trace in traces for family in families(trace.programs)], traces, ">")


def _joined(found: Sequence[Family], traces: Sequence[Trace], sign: str) -> Trace:
    named = all_of(renamed(family, f"{place}-{{}}") for place, family in enumerate(found))
    rejected = [line for trace in traces for line in trace.rejected]
    notes = tuple(note for trace in traces for note in trace.notes)
    return Trace(programs=named, rejected=rejected, name=sign.join(trace.name for trace in traces), notes=notes)
