"""Evict by the program's label before its last use, and in the reverse order in host memory.

**Paper**: MORI §4.3.2. The device evicts inactive programs first, then idle, then busy ones; host memory inactive
ones first, then busy, then idle ones: so each tier keeps those that were placed on it. Among equals the least
recently used goes first. A program without a label is busy: nobody has moved it off. A parked one is inactive:
it ended, or lost its slot otherwise, and nobody waits for it. Who is idle is parked, too, and will be back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.policies.memory.victims import YieldingPins, all_or_nothing
from controlplane.core.policies.protocols import Fit, ResidentView

_DEVICE = {"inactive": 0, "idle": 1, "busy": 2}
_HOST = {"inactive": 0, "busy": 1, "idle": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed(YieldingPins):
    """All or nothing, as ``Lru``."""

    def host_rank(self, label: str, parked: bool) -> int:
        return _HOST[_kind(label, parked)]

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> Fit:
        if shortfall_blocks <= 0:
            return Fit(chunk_blocks=chunk_blocks, victims=())
        ordered = sorted(
            candidates, key=lambda each: _DEVICE[_kind(each.label, each.parked)]
        )  # stable: by last use
        return all_or_nothing(chunk_blocks, shortfall_blocks, ordered)


def _kind(label: str, parked: bool) -> str:
    """The label that holds: ``inactive``, ``idle`` or ``busy``."""
    if label in ("inactive", "idle"):
        return label
    return "inactive" if parked else "busy"
