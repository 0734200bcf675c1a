"""A windowed multi-level feedback queue: small and lightly served programs first, long waits rise.

**Paper**: MARS §4.3 "Priority-Aware Coordinator": priority is footprint, accumulated service and waiting time;
calls with smaller footprints begin higher, those that consumed more are pushed down, promotion is bounded. The
paper gives no numbers; ours, and where we deviate, are in docs/adr/0012.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.types import seconds
from controlplane.core.policies.protocols import EngineShape, PriorityPolicy, QueuedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlfq(PriorityPolicy):
    """Levels by footprint, demoted by service, promoted by waiting. Level 0 runs first.

    ``shares``: footprints up to these shares of the pool begin at levels 0, 1, ...; a larger one at the last.
    ``quota_chunks``: prefill chunks' worth of tokens that level 0 serves a program in ``window_s``; each lower
    level serves twice as much. Whoever has used a level's quota up stands one lower.
    ``promote_s``: each such time that a call waits raises it one level, ``promotions`` times at most.
    ``cold``: a call's footprint is what it has yet to take of the pool, so that one that returns to its cached
    context is as small as what is new in its prompt.
    """

    shares: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4)
    quota_chunks: float = 2.0
    window_s: float = 60.0
    promote_s: float = 10.0
    promotions: int = 3
    cold: bool = False

    def __post_init__(self) -> None:
        if not self.shares or list(self.shares) != sorted(set(self.shares)):
            raise ConfigError(f"expected ascending shares, got {list(self.shares)}", field="shares")
        for share in self.shares:
            require("shares", share, low=0, high=1, ends="(]")
        require("quota_chunks", self.quota_chunks, low=0, high=1_000_000, ends="(]")
        require("window_s", self.window_s, low=0, high=86_400, ends="(]")
        require("promote_s", self.promote_s, low=0, high=86_400, ends="(]")
        require("promotions", self.promotions, low=0, high=100)

    @property
    def window_ns(self) -> int:
        return seconds(self.window_s)

    @property
    def asks_cached(self) -> bool:
        return self.cold

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        promote_ns = max(1, seconds(self.promote_s))

        def key(call: QueuedCall) -> tuple[int, int, str]:
            risen = min(self.promotions, max(0, now_ns - call.queued_at_ns) // promote_ns)
            footprint_blocks = call.footprint_blocks - (call.cached_blocks if self.cold else 0)
            level = max(0, self.level(footprint_blocks, call.served_tokens, engine) - risen)
            return (level, call.queued_at_ns, call.turn_id)

        return sorted(calls, key=key)

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        last = len(self.shares)
        level = 0
        while level < last and footprint_blocks > self.shares[level] * engine.pool_blocks:
            level += 1
        excess_tokens = float(served_tokens)
        while level < last:
            excess_tokens -= self.quota_chunks * engine.chunk_tokens * (1 << level)
            if excess_tokens <= 0:
                break
            level += 1
        return level
