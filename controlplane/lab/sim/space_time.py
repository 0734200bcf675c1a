"""What the KV pool was used for: blocks times the time that each of them served it.

**Paper**: ThunderAgent §4.2, eq. 2-3: the space-time product of decoding, prefilling, computing again what was
evicted, holding contexts that nothing runs, and holding nothing.
"""

from collections.abc import Iterable

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.prefix_cache import PrefixCache

_PS = 1000 * NANOSECONDS_PER_SECOND


class SpaceTime:
    """Sums in block-seconds. Between two instants what was held at the first one counts."""

    def __init__(self) -> None:
        self.decode = self.prefill = self.recompute = self.caching = self.unused = 0.0
        self.at_ps = 0

    def hold(self, cache: PrefixCache, prefilling: Iterable[Progress], until_ps: int) -> None:
        """So the pool was held since the last call; turns that run and are not ``prefilling`` were decoding."""
        if until_ps <= self.at_ps:
            return
        seconds = (until_ps - self.at_ps) / _PS
        self.at_ps = until_ps
        idle_blocks = cache.evictable_blocks + cache.pinned_blocks
        computed = again = 0.0
        for turn in prefilling:
            blocks = turn.shared_blocks + turn.own_blocks
            again += blocks * turn.recomputed_ratio
            computed += blocks * (1 - turn.recomputed_ratio)
        self.decode += (cache.total_blocks - cache.free_blocks - idle_blocks - computed - again) * seconds
        self.prefill += computed * seconds
        self.recompute += again * seconds
        self.caching += idle_blocks * seconds
        self.unused += cache.free_blocks * seconds

    @property
    def total(self) -> float:
        """The pool's size times the time so far."""
        return self.decode + self.prefill + self.recompute + self.caching + self.unused
