"""A call's context back from the tiers below the device, as part of its first chunk."""

from controlplane.sim.call import Progress
from controlplane.sim.kv_pool import KvPool


def take_room(turn: Progress, pool: KvPool, usable_blocks: int, block_tokens: int, now_ns: int) -> None:
    """Take device blocks for what of the call's context lies below; its first chunk pays for the transfer.

    ``usable_blocks``: the beginning of the context that the call shares with the last one.
    """
    below, node, held_blocks = pool.cache.below, turn.node, turn.context_blocks
    if below is None or node is None or node.refs > 1:
        return
    below.cut(node.key, usable_blocks)
    below.touch(node.key)
    blocks, _ = below.find(node.key, held_blocks, usable_blocks)
    granted = pool.take_chunk(blocks, now_ns) if blocks else 0
    # Making that room may have pushed out some of it.
    turn.loaded_blocks, turn.load_ps = below.find(node.key, held_blocks, min(usable_blocks, held_blocks + granted))
    pool.give(granted - turn.loaded_blocks)
    turn.own_blocks = turn.loaded_blocks
    turn.kv_tokens += turn.loaded_blocks * block_tokens


def transfer_ps(turn: Progress, pool: KvPool) -> int:
    """How long the chunk that begins now waits for what it loads; counted once."""
    load_ps = turn.load_ps
    if load_ps and pool.cache.below is not None:
        pool.cache.below.loaded_blocks += turn.loaded_blocks
        turn.loaded_blocks = turn.load_ps = 0
    return load_ps
