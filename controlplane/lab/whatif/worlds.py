"""A recorded workload as it was, and a little shifted, and with more agents or fewer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.lab.whatif.figures import COPY
from controlplane.lab.workload.trace import ProgramTrace

_ARRIVALS_VARY = 0.2  # of the time between two arrivals, at most
_GAPS_VARY = 0.05  # of a tool's time, the standard deviation


@dataclass(frozen=True, slots=True)
class World:
    """Programs in the order of their arrivals, in nanoseconds from the beginning."""

    programs: tuple[ProgramTrace, ...]
    arrivals_ns: tuple[int, ...]


def shifted(world: World, number: int) -> World:
    """World ``number``: 0 is the recorded one; in others arrivals and tools' times differ a little.

    Who arrived together does so still, and the last arrival stays where it was.
    """
    if not number:
        return world
    rng = np.random.default_rng(number)
    between = np.diff(np.array(world.arrivals_ns, dtype=np.float64))
    varied = between * rng.uniform(1 - _ARRIVALS_VARY, 1 + _ARRIVALS_VARY, len(between))
    total = varied.sum()
    varied *= between.sum() / total if total else 1.0
    arrivals = world.arrivals_ns[0] + np.concatenate([[0.0], np.cumsum(varied)])
    programs = tuple(
        replace(
            program,
            turns=tuple(
                turn
                if turn.tool_ms is None
                else replace(turn, tool_ms=turn.tool_ms * float(rng.lognormal(0.0, _GAPS_VARY)))
                for turn in program.turns
            ),
        )
        for program in world.programs
    )
    return World(programs, tuple(round(float(at)) for at in arrivals))


def with_agents(world: World, factor: float, number: int) -> World:
    """So many times as many programs, of the same kinds and over the same time; copies have names of their own.

    A copy arrives about when some other program did, so that it does not walk in step with its original.
    """
    count, wanted = len(world.programs), max(1, round(factor * len(world.programs)))
    rng = np.random.default_rng(1000 + number)
    if wanted <= count:
        chosen = sorted(rng.permutation(count)[:wanted])
        return World(tuple(world.programs[i] for i in chosen), tuple(world.arrivals_ns[i] for i in chosen))
    mean_ns = (world.arrivals_ns[-1] - world.arrivals_ns[0]) / max(1, count - 1)
    found = list(zip(world.arrivals_ns, world.programs, strict=True))
    for extra, index in enumerate(_rounds(rng, count, wanted - count)):
        program, other = world.programs[index], int(rng.integers(count))
        at_ns = world.arrivals_ns[other] + round(float(rng.uniform(0, mean_ns)))
        found.append((at_ns, replace(program, program_id=f"{program.program_id}{COPY}{extra // count + 2}")))
    found.sort(key=lambda each: each[0])
    return World(tuple(program for _, program in found), tuple(at_ns for at_ns, _ in found))


def _rounds(rng: np.random.Generator, count: int, wanted: int) -> Sequence[int]:
    """Each of ``count`` once, in some order, and again."""
    rounds = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return [int(index) for index in np.concatenate(rounds)[:wanted]]
