"""Programs with a context in host memory go first, then returners without one, then newcomers.

**Paper**: MORI §4.3.1, promotion to the GPU: (1) the CPU queue, (2) the Waiting queue, returning programs before
new arrivals, (3) new ones, the smallest context first. Within the first two the least idle goes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.idleness import idleness
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, QueuedProgram, Tier
from controlplane.core.policies.protocols import PackingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTier(PackingPolicy):
    """``idleness_cycles``: how many of a program's last cycles its idleness is taken from."""

    idleness_cycles: int = 5

    def __post_init__(self) -> None:
        require("idleness_cycles", self.idleness_cycles, low=1, high=16)

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        def key(waiting: QueuedProgram) -> tuple[int, float, int]:
            rank = 2 if not waiting.turn_index else 0 if waiting.kv_tier is Tier.HOST else 1
            size = idleness(waiting, self.idleness_cycles, now_ns) if rank < 2 else waiting.blocks
            return rank, size, waiting.arrived_at_ns

        return sorted(queue, key=key)
