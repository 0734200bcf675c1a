"""Evict the least recently used program's tail, as SGLang's radix tree does (leaves first)."""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.memory.victims import take
from controlplane.core.policies import STATELESS, Fit, ResidentView, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Lru:
    """All or nothing: the chunk keeps its size, or nothing is scheduled."""

    @property
    def shrinks(self) -> bool:
        return False

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
        victims, missing = take(candidates, shortfall_blocks)
        if missing > 0:
            return state, Fit(chunk_blocks=0, victims=())
        return state, Fit(chunk_blocks=chunk_blocks, victims=victims)
