"""Taking blocks from the prefix cache: free ones first, then what a memory policy gives up."""

from collections.abc import Container

from controlplane.core.policies.protocols import EngineShape, MemoryPolicy
from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.hardware import PS
from controlplane.lab.sim.prefix_cache import Level, PrefixCache, owner


class KvPool:
    """The allocator of running turns."""

    def __init__(self, engine: EngineShape, policy: MemoryPolicy) -> None:
        self.cache = PrefixCache(engine.pool_blocks)
        self.level: Level = lambda key, blocks: 0
        self.parked: Container[str] = ()
        self.labels: dict[str, str] = {}
        self.reclaimed: list[str] = []  # whose pins were given up, until that is told
        self._floor_blocks = engine.floor_blocks
        self.use(policy)

    def use(self, policy: MemoryPolicy) -> None:
        """Make room by another policy from now on."""
        self.shrinks = policy.shrinks
        self.pins_outlast_waits = policy.pins_outlast_waits
        self.pin_budget_ratio = policy.pin_budget_ratio
        self.retracts_by_level = policy.retracts_by_level
        self._policy = policy

    @property
    def available_blocks(self) -> int:
        """Free, or evictable now."""
        return self.cache.free_blocks + self.cache.evictable_blocks

    def spare_blocks(self) -> int:
        """Free, or held for programs that nobody waits for."""
        parked = (
            resident.blocks
            for resident in self.cache.candidates(self.parked, self.labels, self.level)
            if resident.parked
        )
        return self.cache.free_blocks + sum(parked)

    def take_chunk(self, blocks: int, now_ns: int) -> int:
        """Take blocks for a prefill chunk; the policy may grant fewer. Returns how many."""
        granted = self._make_room(blocks, self._floor_blocks, now_ns)
        return self._take(max(0, min(blocks, granted)))

    def take_growth(self, blocks: int, now_ns: int) -> None:
        """Take blocks for tokens that are being decoded; at least so many are available.

        Decoding cannot shrink: where the policy would rather wait, the least recently used go.
        """
        self._make_room(blocks, blocks, now_ns)
        self.force_free(blocks)
        self.cache.free_blocks -= blocks

    def _take(self, blocks: int) -> int:
        taken = min(blocks, self.cache.free_blocks)
        self.cache.free_blocks -= taken
        return taken

    def _make_room(self, blocks: int, least_blocks: int, now_ns: int) -> int:
        """Evict what the policy gives up where too few are free. Returns how many it grants."""
        shortfall = blocks - self.cache.free_blocks
        if shortfall <= 0:
            return blocks
        candidates = self.cache.candidates(self.parked, self.labels, self.level)
        fit = self._policy.fit(blocks, shortfall, least_blocks, candidates, now_ns)
        for key, victim_blocks in fit.victims:
            self.cache.evict(key, victim_blocks)
        return fit.chunk_blocks

    def force_free(self, blocks: int) -> bool:
        """Evict, and give up pins, until ``blocks`` are free. Returns whether they are."""
        cache = self.cache
        while (shortfall := blocks - cache.free_blocks) > 0:
            if cache.evictable_blocks:
                cache.evict_oldest(shortfall)
            elif not self.unpin(shortfall, stuck=True):
                return False
        return True

    def unpin(self, shortfall_blocks: int, *, stuck: bool) -> bool:
        """Give up the pins that the policy would for so many blocks. Returns whether there were any."""
        if shortfall_blocks <= 0 or not self.cache.pinned_blocks:
            return False
        names = self._policy.unpin(self.cache.pinned(), shortfall_blocks, stuck)
        for name in names:
            if self.cache.unpin(name):
                self.cache.ttl_misses += 1
                self.reclaimed.append(owner(name))
        return bool(names)

    def host_rank(self, key: str) -> int:
        """In which order copies below the device make room."""
        program_id = owner(key)
        return self._policy.host_rank(self.labels.get(program_id, ""), program_id in self.parked)

    def adopt(self, program_id: str, group: str, base_blocks: int, blocks: int, now_ns: int) -> int:
        """Cache a context of ``blocks`` behind a shared prefix, and what lacks of that, as far as others yield.

        Returns the blocks taken; 0 where a turn uses the program's context.
        """
        cache = self.cache
        held = cache.find(program_id)
        node = None if held is not None and held.refs else cache.acquire(program_id, group, base_blocks, blocks)
        if node is None:
            return 0
        prefix_blocks = max(0, base_blocks - node.parent.blocks) if node.parent is not None else 0
        taken = min(prefix_blocks + blocks - node.blocks, self.available_blocks)
        self.take_growth(taken, now_ns)
        if node.parent is not None:
            node.parent.blocks += min(taken, prefix_blocks)
        cache.extend(node, max(0, taken - prefix_blocks))
        cache.release(node, now_ns)
        return taken

    def fetch(self, program_id: str, now_ns: int) -> str:
        """Load what of an idle context lies below the device, beside the computation; why that cannot be done."""
        cache, below = self.cache, self.cache.below
        if below is None:
            return "there is no memory below the device: give the engine a tier"
        key = cache.latest.get(program_id, program_id)
        node, (group, base_blocks) = cache.find(key), cache.origins.get(key, ("", 0))
        if node is not None and node.refs:
            return "a turn of it runs"
        held_blocks = node.blocks if node is not None else 0
        blocks, load_ps = below.find(key, held_blocks, cache.total_blocks)
        prefix = cache.find_prefix(group) if base_blocks else None
        if not blocks or (base_blocks and (prefix is None or prefix.blocks < base_blocks)):
            return "nothing of it could be used that lies below the device alone"
        if blocks > self.available_blocks:
            return f"no room on the device: it needs {blocks} blocks"
        self.adopt(key, group, base_blocks, held_blocks + blocks, now_ns)
        if (loaded := cache.find(key)) is not None:
            loaded.loading_until_ns = now_ns + -(-load_ps // PS)
        below.loaded_blocks += blocks
        return ""

    def lies_below(self, turn: Progress, device_blocks: int, usable_blocks: int) -> bool:
        """Whether something of the call's context would be loaded, beside the ``device_blocks`` that are there."""
        below = self.cache.below
        return below is not None and below.find(turn.call.cache_key, device_blocks, usable_blocks)[0] > 0

    def reload(self, turn: Progress, usable_blocks: int, block_tokens: int, now_ns: int) -> None:
        """Take device blocks for what of the call's context lies below; its first chunk pays for the transfer.

        ``usable_blocks``: the beginning of the context that the call shares with the last one.
        """
        below, node, held_blocks = self.cache.below, turn.node, turn.context_blocks
        if below is None or node is None or node.refs > 1:
            return
        below.cut(node.key, usable_blocks)
        below.touch(node.key)
        blocks, _ = below.find(node.key, held_blocks, usable_blocks)
        self._make_room(blocks, blocks, now_ns)  # what is not loaded now is computed again
        granted = self._take(blocks)
        # Making that room may have pushed out some of it.
        usable_blocks = min(usable_blocks, held_blocks + granted)
        turn.loaded_blocks, turn.load_ps = below.find(node.key, held_blocks, usable_blocks)
        self.give(granted - turn.loaded_blocks)
        turn.load_ps += max(0, node.loading_until_ns - now_ns) * PS  # what was fetched too late
        turn.own_blocks = turn.loaded_blocks
        turn.kv_tokens += turn.loaded_blocks * block_tokens

    def transfer_ps(self, turn: Progress) -> int:
        """How long the chunk that begins now waits for what it loads; counted once."""
        load_ps = turn.load_ps
        if load_ps and self.cache.below is not None:
            self.cache.below.loaded_blocks += turn.loaded_blocks
            turn.loaded_blocks = turn.load_ps = 0
        return load_ps

    def give(self, blocks: int) -> None:
        """Return a running turn's blocks."""
        self.cache.free_blocks += blocks
