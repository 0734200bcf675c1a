"""Programs with a context in host memory go first, then returners without one, then newcomers.

**Paper**: MORI §4.3.1, promotion to the GPU: (1) the CPU queue, (2) the Waiting queue, returning programs before
new arrivals, (3) new ones, the smallest context first. Within the first two the least idle goes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from controlplane.core.errors import require
from controlplane.core.facts import Facts
from controlplane.core.idleness import idleness
from controlplane.core.types import Pressure, QueuedProgram, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTier:
    """``idleness_cycles``: how many of a program's last cycles its idleness is taken from."""

    looks_ahead: ClassVar[bool] = False
    ages: ClassVar[bool] = False
    idleness_cycles: int = 5

    def __post_init__(self) -> None:
        require("idleness_cycles", self.idleness_cycles, low=1, high=16)

    def order(
        self, queue: Sequence[QueuedProgram], facts: Facts, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        def key(waiting: QueuedProgram) -> tuple[int, float, int]:
            rank = 2 if not waiting.turn_index else 0 if waiting.kv_tier is Tier.HOST else 1
            size = idleness(waiting, self.idleness_cycles, now_ns) if rank < 2 else waiting.blocks
            return rank, size, waiting.arrived_at_ns

        return sorted(queue, key=key)
