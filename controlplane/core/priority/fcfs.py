"""First come, first served, as in the stock engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies import EngineShape, QueuedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs:
    """Retracted calls keep their time of arrival."""

    @property
    def window_ns(self) -> int:
        return 0

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        return sorted(calls, key=lambda call: (call.queued_at_ns, call.turn_id))

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        return 0
