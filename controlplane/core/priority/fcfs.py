"""First come, first served, as the stock engine does it."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies import STATELESS, QueuedCall, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcfs:
    """Retracted calls keep their time of arrival; an explicit SetPriority goes before it (lower first)."""

    def initial(self) -> Stateless:
        return STATELESS

    def order(
        self, state: Stateless, calls: Sequence[QueuedCall], now_ns: int
    ) -> tuple[Stateless, Sequence[QueuedCall]]:
        return state, sorted(calls, key=lambda call: (call.priority, call.queued_at_ns, call.turn_id))
