"""Order the queue by arrival."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.protocols import PackingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs(PackingPolicy):
    """Whoever arrived first is admitted first; a program that returns keeps its first arrival."""

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        return sorted(queue, key=lambda waiting: waiting.arrived_at_ns)
