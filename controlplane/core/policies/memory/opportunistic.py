"""Shrink the chunk before evicting anything that somebody waits for; evict by the queue's priorities.

**Paper**: MARS §4.3. "Opportunistic Co-Scheduler": when allocation fails, the prefill chunk is reduced until it
fits, down to one block, instead of evicting at once. "Priority-Aware Coordinator": eviction follows the queue's
priorities, lower ones first, among them larger footprints. What the paper leaves open is in docs/adr/0012.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controlplane.core.policies.memory.victims import YieldingPins, take
from controlplane.core.policies.protocols import Fit, ResidentView


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic(YieldingPins):
    """``aligned`` false: contexts go least recently used first, running victims as the engine chooses.

    ``shrink`` false: a chunk keeps its size.
    """

    shrink: bool = True
    aligned: bool = True

    @property
    def shrinks(self) -> bool:
        return self.shrink

    @property
    def retracts_by_level(self) -> bool:
        return self.aligned

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> Fit:
        if shortfall_blocks <= 0:
            return Fit(chunk_blocks=chunk_blocks, victims=())
        live: list[ResidentView] = []
        victims, missing = take(_parked(candidates, live), shortfall_blocks)
        smallest = min(least_blocks, chunk_blocks) if self.shrink else chunk_blocks
        if missing > chunk_blocks - smallest:  # shrinking does not do: now contexts that will be needed go
            more, missing = take(self._ordered(live), missing)
            victims += more
        chunk_blocks -= missing
        if chunk_blocks < smallest:
            return Fit(chunk_blocks=0, victims=())
        return Fit(chunk_blocks=chunk_blocks, victims=victims)

    def _ordered(self, live: list[ResidentView]) -> list[ResidentView]:
        if self.aligned:
            live.sort(key=lambda resident: (-resident.level, -resident.blocks))  # stable: then the least recent
        return live


def _parked(candidates: Iterable[ResidentView], live: list[ResidentView]) -> Iterator[ResidentView]:
    """The parked ones; the others are put into ``live``. It reads no further than it is asked to."""
    for resident in candidates:
        if resident.parked:
            yield resident
        else:
            live.append(resident)
