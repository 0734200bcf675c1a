"""What the cache holds of a call's prompt."""

from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.prefix_cache import PrefixCache


def match(turn: Progress, cache: PrefixCache, block_tokens: int) -> tuple[int, int]:
    """Blocks of the shared prefix and of the program's own context that the cache holds for a call."""
    if turn.alone:
        return 0, 0
    call, base = turn.call, turn.prefix_blocks
    prefix = cache.find_prefix(call.prefix_group) if base else None
    prefix_blocks = min(prefix.blocks, base) if prefix is not None else 0
    node = cache.find(call.cache_key)
    if node is None or node.base_blocks != base or node.parent is not prefix:
        return prefix_blocks, 0
    return prefix_blocks, min(node.blocks, reusable_blocks(turn, block_tokens))


def reusable_blocks(turn: Progress, block_tokens: int) -> int:
    """The beginning of the program's own context that the call shares with the last one."""
    # After a retraction the cached context is this call's own prompt.
    reusable = turn.call.prompt_tokens if turn.retracted else turn.call.reusable_tokens
    return max(0, min(reusable, turn.goal_tokens - 1) // block_tokens - turn.prefix_blocks)
