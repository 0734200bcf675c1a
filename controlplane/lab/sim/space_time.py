"""What the KV pool was used for: blocks times the time that each of them served it.

**Paper**: ThunderAgent §4.2, eq. 2-3: the space-time product of decoding, prefilling, computing again what was
evicted, holding contexts that nothing runs, and holding nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.prefix_cache import PrefixCache

_PS = 1000 * NANOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Blocks of the pool by what they do at one instant."""

    decode: float = 0.0
    prefill: float = 0.0
    recompute: float = 0.0
    caching: float = 0.0
    unused: float = 0.0


def held_now(cache: PrefixCache, prefilling: Iterable[Progress]) -> Holding:
    """``prefilling`` are the turns whose prompts are being computed; the others that run are decoding."""
    idle_blocks = cache.evictable_blocks + cache.pinned_blocks
    computed = again = 0.0
    for turn in prefilling:
        blocks = turn.shared_blocks + turn.own_blocks
        again += blocks * turn.recomputed_ratio
        computed += blocks * (1 - turn.recomputed_ratio)
    return Holding(
        decode=cache.total_blocks - cache.free_blocks - idle_blocks - computed - again,
        prefill=computed,
        recompute=again,
        caching=idle_blocks,
        unused=cache.free_blocks,
    )


class SpaceTime:
    """Sums in block-seconds. Between two instants what was held at the first one counts."""

    def __init__(self) -> None:
        self.decode = self.prefill = self.recompute = self.caching = self.unused = 0.0
        self._at_ps = 0

    def hold(self, held: Holding, until_ps: int) -> None:
        """This much was held since the last call."""
        if until_ps <= self._at_ps:
            return
        seconds = (until_ps - self._at_ps) / _PS
        self._at_ps = until_ps
        self.decode += held.decode * seconds
        self.prefill += held.prefill * seconds
        self.recompute += held.recompute * seconds
        self.caching += held.caching * seconds
        self.unused += held.unused * seconds

    @property
    def total(self) -> float:
        """The pool's size times the time so far."""
        return self.decode + self.prefill + self.recompute + self.caching + self.unused
