"""Evict the least recently used program's tail, as SGLang's radix tree does (leaves first)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.policies.memory.victims import PIN_BUDGET_RATIO, YieldingPins, all_or_nothing, unpin_until
from controlplane.core.policies.protocols import Fit, Pinned, ResidentView


@dataclass(frozen=True, slots=True, kw_only=True)
class Lru(YieldingPins):
    """All or nothing: the chunk keeps its size, or nothing is scheduled.

    ``keep_pins`` is Continuum's rule (§5.2): calls wait for pinned memory, a pin past its time holds while its
    program's next call waits, and when nothing can be scheduled at all pins go by latest program arrival. That
    breaks any deadlock of them, so they may take the whole pool (docs/adr/0004). Without it a pin goes, the one
    that ends first, as soon as a call needs its room.
    """

    keep_pins: bool = False

    @property
    def pins_outlast_waits(self) -> bool:
        return self.keep_pins

    @property
    def pin_budget_ratio(self) -> float:
        return 1.0 if self.keep_pins else PIN_BUDGET_RATIO

    def unpin(self, pins: Sequence[Pinned], shortfall_blocks: int, stuck: bool) -> Sequence[str]:
        if not self.keep_pins:
            return unpin_until(pins, shortfall_blocks, key=lambda pin: pin.until_ns)
        if not stuck:
            return ()
        return unpin_until(pins, shortfall_blocks, key=lambda pin: -pin.program_arrived_at_ns)

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> Fit:
        return all_or_nothing(chunk_blocks, shortfall_blocks, candidates)
