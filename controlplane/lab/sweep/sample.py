"""A fair part of a grid that is too large to be run whole.

Places are drawn, and every preset runs in each, so that comparisons stay paired. The draw is even over each axis
first, then over each pair of axes: the next place is one whose workload, hardware, load, telemetry and seed were
drawn least so far, and among those one whose pairs were. What is left open is chosen by the seed. So the draw
depends on the axes and the seed alone: the same command goes on with it, and a larger sample begins with the
smaller one.
"""

import random
from collections.abc import Sequence

import numpy as np

from controlplane.lab.sweep.spec import Place

_NEVER = np.iinfo(np.int64).max // 2


def draw(places: Sequence[Place], count: int, seed: int) -> list[Place]:
    """``count`` of them, or all where there are fewer, in the order in which they were drawn."""
    shuffled = random.Random(seed).sample(places, len(places))
    axes = np.array([place.levels for place in shuffled])
    once, twice = (np.zeros(len(shuffled), dtype=np.int64) for _ in range(2))
    drawn: list[Place] = []
    while len(drawn) < min(count, len(shuffled)):
        least = int(np.lexsort((twice, once))[0])
        drawn.append(shuffled[least])
        alike = (axes == axes[least]).sum(axis=1)
        once += alike
        twice += alike * (alike - 1) // 2
        once[least] = _NEVER
    return drawn
