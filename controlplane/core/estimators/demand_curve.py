"""How much KV the programs in the engine will need before they end.

Contexts grow after admission: what a newcomer will ask for is not what he asks for now. An agent's context grows
about evenly, turn by turn, from its first prompt to its last; a program that is half-way will be gone when one
that starts now is half-way. Summing what everybody is expected to hold over the time to come shows that programs
of different age share a pool that as many programs of one age would overfill (docs/adr/0005).

Time is counted in lifetimes on a grid: what an average program takes, its turns and the gaps between them.
"""

from collections.abc import Iterable
from itertools import accumulate
from math import ceil
from typing import NamedTuple

POINTS = 16


class Growing(NamedTuple):
    """A program that holds ``blocks`` and is expected to end with ``last``, ``lifetimes`` from now."""

    blocks: float
    last: float
    lifetimes: float = 1.0

    @property
    def left(self) -> float:
        """Blocks times lifetimes: what it will hold from now to its end."""
        return (self.blocks + max(self.blocks, self.last)) / 2 * self.lifetimes


def demand(programs: Iterable[tuple[float, float, float]], shared_blocks: int = 0) -> tuple[int, ...]:
    """Blocks needed at each point of the grid, 1/16 to 1 lifetime from now, if nobody else came. O(programs).

    ``shared_blocks``: a prefix that all share and ``programs`` leave out.
    """
    held = [0.0] * (POINTS + 1)  # by the last point that the program sees
    slope = [0.0] * (POINTS + 1)
    for blocks, last, lifetimes in programs:
        points = lifetimes * POINTS
        if points < 1.0:
            points = 1.0
        last_point = ceil(points) if points < POINTS else POINTS
        if blocks > 0:
            held[last_point] += blocks
        if last > blocks:
            slope[last_point] += (last - blocks) / points
    alive_held = list(accumulate(reversed(held)))[::-1]
    alive_slope = list(accumulate(reversed(slope)))[::-1]
    return tuple(ceil(shared_blocks + alive_held[k] + alive_slope[k] * k) for k in range(1, POINTS + 1))


def needs(program: Growing) -> tuple[float, ...]:
    """Blocks that one program needs at each point of the grid; nothing once it has ended."""
    points = max(1.0, program.lifetimes * POINTS)
    slope = max(0.0, program.last - program.blocks) / points
    return tuple(program.blocks + slope * k if k <= ceil(points) else 0.0 for k in range(1, POINTS + 1))
