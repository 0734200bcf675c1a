"""First come, first served, as the stock engine does it."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies import STATELESS, EngineShape, QueuedCall, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs:
    """Retracted calls keep their time of arrival; an explicit SetPriority goes before it (lower first)."""

    @property
    def window_ns(self) -> int:
        return 0

    def initial(self) -> Stateless:
        return STATELESS

    def order(
        self, state: Stateless, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int
    ) -> tuple[Stateless, Sequence[QueuedCall]]:
        return state, sorted(calls, key=lambda call: (call.priority, call.queued_at_ns, call.turn_id))

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        return 0
