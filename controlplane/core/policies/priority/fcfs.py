"""First come, first served, as in the stock engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs(PriorityPolicy):
    """Retracted calls keep their time of arrival."""

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        return sorted(calls, key=lambda call: (call.queued_at_ns, call.turn_id))
