"""What a second of memory and a token that is computed again cost, in seconds of the engine."""

from dataclasses import dataclass, field

from controlplane.core.estimators.prefill_cost import PrefillCost
from controlplane.core.model.events import FirstToken, PoolSampled
from controlplane.core.model.places import place_of
from controlplane.core.model.types import NANOSECONDS_PER_SECOND

_MOST_POOLS = 4096  # engines; the one that was silent for longest is forgotten
_LEAST_TOKENS = 64  # below that a prefill measures the step's overhead, not its length


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """An engine's latest sample, in tokens."""

    total_tokens: int = 0
    free_tokens: int = 0
    evictable_tokens: int = 0
    block_tokens: int = 1

    @property
    def full_ratio(self) -> float:
        """The share of it that is in use, by cache too; 0 while nothing is known."""
        return 1.0 - self.free_tokens / self.total_tokens if self.total_tokens else 0.0


NO_POOL = Pool()


@dataclass(slots=True, kw_only=True, eq=False)
class Prices:
    """Learned from the same events as the controller's own estimates, and apart from them."""

    prefill: PrefillCost = field(default_factory=PrefillCost)
    pools: dict[str, Pool] = field(default_factory=dict)  # by place of the engine

    def sampled(self, event: PoolSampled) -> None:
        size = max(1, event.block_tokens)
        place = place_of(event.publisher)
        self.pools.pop(place, None)
        if len(self.pools) >= _MOST_POOLS:
            del self.pools[next(iter(self.pools))]
        self.pools[place] = Pool(
            total_tokens=event.total_blocks * size,
            free_tokens=event.free_blocks * size,
            evictable_tokens=event.evictable_blocks * size,
            block_tokens=size,
        )

    def prefilled(self, event: FirstToken) -> None:
        computed_tokens = event.prompt_tokens - event.cached_tokens
        if event.prefill_ns > 0 and computed_tokens >= _LEAST_TOKENS and not event.loaded_tokens:
            self.prefill.add(computed_tokens, event.cached_tokens, event.prefill_ns)

    def pool(self, place: str) -> Pool:
        """The engine's; any, where nobody knows which."""
        found = self.pools.get(place)
        return found if found is not None else next(iter(self.pools.values()), NO_POOL)

    def computing_s(self, tokens: float, cached_tokens: float) -> float:
        """To compute so many tokens behind cached ones; 0 while no prefill was seen."""
        if tokens <= 0:
            return 0.0
        return self.prefill.part_ns(round(tokens), round(cached_tokens)) / NANOSECONDS_PER_SECOND

    def loading_s(self, event: FirstToken) -> float:
        """By which the turn's prefill took longer for what it loaded from below the device."""
        if not event.loaded_tokens:
            return 0.0
        computed_s = self.computing_s(event.prompt_tokens - event.cached_tokens, event.cached_tokens)
        return max(0.0, event.prefill_ns / NANOSECONDS_PER_SECOND - computed_s)

    def room_s(self, token_s: float, place: str) -> float:
        """Of so many token-seconds in the engine's pool, as full as it is."""
        pool = self.pool(place)
        return token_s / pool.total_tokens * pool.full_ratio if pool.total_tokens else 0.0
