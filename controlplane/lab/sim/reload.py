"""A call's context back from the tiers below the device, as part of its first chunk."""

from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.hardware import PS
from controlplane.lab.sim.kv_pool import KvPool


def lies_below(turn: Progress, pool: KvPool, device_blocks: int, usable_blocks: int) -> bool:
    """Whether something of the call's context would be loaded, beside the ``device_blocks`` that are there."""
    below = pool.cache.below
    return below is not None and below.find(turn.call.cache_key, device_blocks, usable_blocks)[0] > 0


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
    granted = pool.take_load(blocks, now_ns) if blocks else 0
    # Making that room may have pushed out some of it.
    turn.loaded_blocks, turn.load_ps = below.find(node.key, held_blocks, min(usable_blocks, held_blocks + granted))
    pool.give(granted - turn.loaded_blocks)
    turn.load_ps += max(0, node.loading_until_ns - now_ns) * PS  # what was fetched too late
    turn.own_blocks = turn.loaded_blocks
    turn.kv_tokens += turn.loaded_blocks * block_tokens


def transfer_ps(turn: Progress, pool: KvPool) -> int:
    """How long the chunk that begins now waits for what it loads; counted once."""
    load_ps = turn.load_ps
    if load_ps and pool.cache.below is not None:
        pool.cache.below.loaded_blocks += turn.loaded_blocks
        turn.loaded_blocks = turn.load_ps = 0
    return load_ps
