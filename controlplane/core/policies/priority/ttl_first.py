"""First come, first served by program, after calls that return to a pinned context.

**Paper**: Continuum §4.3: preempted calls first, then those whose context is pinned, then by program arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlFirst(PriorityPolicy):
    """``pinned_first`` false: retracted ones, then by program arrival (the ablation "Program-Level FCFS")."""

    pinned_first: bool = True

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        def key(call: QueuedCall) -> tuple[bool, bool, int, int, str]:
            return (
                not call.retracted,
                self.pinned_first and not call.pinned,
                call.program_arrived_at_ns,
                call.queued_at_ns,
                call.turn_id,
            )

        return sorted(calls, key=key)
