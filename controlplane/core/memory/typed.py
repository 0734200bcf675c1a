"""Evict by the program's label before the last use, and the other way round in host memory.

**Paper**: MORI §4.3.2. The device evicts inactive programs first, then idle, then busy ones; host memory inactive
ones first, then busy, then idle ones: so each tier keeps those that were placed on it. Among equals the least
recently used goes first. A program without a label is busy: nobody has moved it off.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.memory.victims import all_or_nothing, unpin_until
from controlplane.core.policies import STATELESS, Fit, Pinned, ResidentView, Stateless

_DEVICE = {"inactive": 0, "idle": 1}
_HOST = {"inactive": 0, "idle": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """All or nothing, as ``Lru``."""

    @property
    def shrinks(self) -> bool:
        return False

    @property
    def pins_outlast_waits(self) -> bool:
        return False

    def unpin(self, pins: Sequence[Pinned], shortfall_blocks: int, stuck: bool) -> Sequence[str]:
        return unpin_until(pins, shortfall_blocks, key=lambda pin: pin.until_ns)

    def host_rank(self, label: str) -> int:
        return _HOST.get(label, 1)

    def initial(self) -> Stateless:
        return STATELESS

    def fit(
        self,
        state: Stateless,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> tuple[Stateless, Fit]:
        if shortfall_blocks <= 0:
            return state, Fit(chunk_blocks=chunk_blocks, victims=())
        ordered = sorted(candidates, key=lambda each: _DEVICE.get(each.label, 2))  # stable: then by last use
        return state, all_or_nothing(chunk_blocks, shortfall_blocks, ordered)
