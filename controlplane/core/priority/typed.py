"""Calls of busy programs before those of idle ones, each first come, first served.

**Paper**: MORI §4.3.2: the label that decides what is evicted also decides who is scheduled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.policies import STATELESS, EngineShape, QueuedCall, Stateless

_RANK = {"idle": 1, "inactive": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A program without a label is busy. An explicit SetPriority goes before the label."""

    @property
    def window_ns(self) -> int:
        return 0

    def initial(self) -> Stateless:
        return STATELESS

    def order(
        self, state: Stateless, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int
    ) -> tuple[Stateless, Sequence[QueuedCall]]:
        def key(call: QueuedCall) -> tuple[int, int, int, str]:
            return call.priority, _RANK.get(call.label, 0), call.queued_at_ns, call.turn_id

        return state, sorted(calls, key=key)

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        return 0
