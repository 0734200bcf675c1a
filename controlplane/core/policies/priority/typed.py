"""Calls of busy programs go before those of idle ones, each first come, first served.

**Paper**: MORI §4.3.2: the label that decides what is evicted also decides who is scheduled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall

_RANK = {"idle": 1, "inactive": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed(PriorityPolicy):
    """A program without a label is busy."""

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        def key(call: QueuedCall) -> tuple[int, int, str]:
            return _RANK.get(call.label, 0), call.queued_at_ns, call.turn_id

        return sorted(calls, key=key)
