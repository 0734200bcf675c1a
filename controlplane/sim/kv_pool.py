"""Taking blocks from the prefix cache: free ones first, then what a memory policy gives up."""

from typing import Any

from controlplane.core.policies import MemoryPolicy
from controlplane.sim.prefix_cache import PrefixCache


class KvPool:
    """The allocator of running turns."""

    def __init__(self, total_blocks: int, policy: MemoryPolicy[Any]) -> None:
        self.cache = PrefixCache(total_blocks)
        self._policy = policy
        self._state = policy.initial()

    @property
    def available_blocks(self) -> int:
        """Free, or evictable now."""
        return self.cache.free_blocks + self.cache.evictable_blocks

    def take_chunk(self, blocks: int, now_ns: int) -> int:
        """Take blocks for a prefill chunk; the policy may grant fewer. Returns how many."""
        cache = self.cache
        shortfall = blocks - cache.free_blocks
        if shortfall > 0:
            self._state, fit = self._policy.fit(self._state, blocks, shortfall, cache.candidates(), now_ns)
            for key, victim_blocks in fit.victims:
                cache.evict(key, victim_blocks)
            blocks = max(0, min(blocks, fit.chunk_blocks, cache.free_blocks))
        cache.free_blocks -= blocks
        return blocks

    def take_growth(self, blocks: int, now_ns: int) -> None:
        """Take blocks for tokens that are being decoded; at least so many are available.

        Decoding cannot shrink: where the policy would rather wait, the least recently used go.
        """
        cache = self.cache
        shortfall = blocks - cache.free_blocks
        if shortfall > 0:
            self._state, fit = self._policy.fit(self._state, blocks, shortfall, cache.candidates(), now_ns)
            for key, victim_blocks in fit.victims:
                cache.evict(key, victim_blocks)
            self.force_free(blocks)
        cache.free_blocks -= blocks

    def force_free(self, blocks: int) -> bool:
        """Evict, and reclaim pins, until ``blocks`` are free. Returns whether they are."""
        cache = self.cache
        while (shortfall := blocks - cache.free_blocks) > 0:
            if cache.evictable_blocks:
                cache.evict_oldest(shortfall)
            elif cache.pinned_blocks:
                cache.reclaim_pins(shortfall)
            else:
                return False
        return True

    def give(self, blocks: int) -> None:
        """Return a running turn's blocks."""
        self.cache.free_blocks += blocks
