"""Order the queue by size, the smallest first.

**Paper**: ThunderAgent §4.3.1, eq. 10: S_restore puts reasoning programs before acting ones, among them shorter
ones. Whoever is in the queue has a turn that waits, so all of them reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.protocols import PackingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortest(PackingPolicy):
    """Equal ones go by arrival."""

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        return sorted(queue, key=lambda waiting: (waiting.blocks, waiting.arrived_at_ns))
