"""A model's KV cache groups: what each keeps cached of a context, and what a hit needs of all of them.

Blocks of one pool belong to whichever group took them. A group of full attention keeps every block of a context;
one of a sliding window, or of states (Mamba, GDN), those at a few boundaries, and a hit reaches as far as all
groups have what they need there. vLLM's coordinator is asked which blocks that are: no kind of group is known here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_FULL = "FullAttentionManager"  # the one that keeps every block of a request, whatever comes
_FAR = 1 << 40  # tokens: a window or a state has left the first of them long behind


@dataclass(frozen=True, slots=True, eq=False)
class ContextKey:
    """The hashes of a context, each of which stands for all before it too.

    ``blocks``: where they lay, where one group keeps a block for each hash; else empty.
    """

    hashes: Sequence[Any]
    blocks: Sequence[Any]
    hash_tokens: int

    def __len__(self) -> int:
        return len(self.hashes) * self.hash_tokens


def groups_of(scheduler: Any) -> "Groups":
    """What looks contexts up in this scheduler's cache."""
    kinds = [type(each).__name__ for each in _managers(scheduler)]
    pool = scheduler.kv_cache_manager.block_pool
    if kinds == [_FULL] and _hash_tokens(scheduler, pool) == scheduler.block_size:
        return OneFullGroup(scheduler)
    return Groups(scheduler)


class Groups:
    """The groups of one scheduler, whatever they are, as vLLM looks contexts up in them.

    ``compute_again``: whether what is cached is computed again, since another group lost its part: it is cached
    twice then, and a look finds one.
    """

    compute_again = True

    def __init__(self, scheduler: Any) -> None:
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._coordinator = self._manager.coordinator
        self._managers = _managers(scheduler)
        self._sparse = [number for number, each in enumerate(self._managers) if _left_behind(each, _FAR)]
        self._hash_tokens = _hash_tokens(scheduler, self._pool)
        # Whether a hit may end within a block.
        self._is_fine = bool(getattr(self._coordinator, "enable_partial_hash_hits", False))
        # Whose hits match more than they take: all groups of a kind, once one of them has a draft's layers.
        self._eagle = [number for number, each in enumerate(self._managers) if getattr(each, "use_eagle", False)]

    def key_of(self, request: Any) -> ContextKey | None:
        """The key of what a request has computed by now, in whole hashes; None if that is nothing."""
        count = min(len(request.block_hashes), request.num_computed_tokens // self._hash_tokens)
        return ContextKey(request.block_hashes[:count], (), self._hash_tokens) if count else None

    def needed(self, key: ContextKey) -> Sequence[Any]:
        """The blocks without which the next hit of ``key`` would end earlier, the first of the context first.

        This costs what vLLM's own look-up for the next turn does.
        """
        return self._needed(key, range(len(self._managers)))

    def needed_of_held(self, key: ContextKey) -> Sequence[Any]:
        """The same, while the request is there that the key is of."""
        return self.needed(key)

    def left_behind(self, key: ContextKey) -> Sequence[Any]:
        """Those of them that the request gives back as it goes on, though it is there still."""
        return self._needed(key, self._sparse) if self._sparse else ()

    def _needed(self, key: ContextKey, groups: Sequence[int]) -> list[Any]:
        found, tokens, *_ = self._coordinator.find_longest_cache_hit(key.hashes, len(key))
        rows = zip_longest(*(found[number] for number in groups))
        blocks = [block for row in rows for block in row if block is not None and not block.is_null]
        return [*blocks, *self._matched_beyond(key, tokens, groups)]

    def _matched_beyond(self, key: ContextKey, tokens: int, groups: Sequence[int]) -> Iterator[Any]:
        """For speculative heads a hit matches one block more than it takes, or one hash."""
        for number in self._eagle if tokens else ():
            for more in {self._managers[number].block_size, self._hash_tokens} if number in groups else ():
                index = (tokens + more) // self._hash_tokens - 1
                if index < len(key.hashes):
                    yield from self._pool.get_cached_block(key.hashes[index], [number]) or ()

    def unused(self, key: ContextKey, first: int, most: int) -> list[Any]:
        """The last so many cached blocks of ``key`` that nobody uses, of all groups, back to the hash ``first``."""
        found: dict[int, Any] = {}
        for index in range(len(key.hashes) - 1, first - 1, -1):
            for number, manager in enumerate(self._managers):
                if self._is_fine or (index + 1) * self._hash_tokens % manager.block_size == 0:
                    for block in self._pool.get_cached_block(key.hashes[index], [number]) or ():
                        if not block.ref_cnt:
                            found[block.block_id] = block
            if len(found) >= most:
                break
        return list(found.values())

    def own_from(self, shared: int) -> int:
        """From which hash on blocks are a context's own, where another begins with its first ``shared`` ones.

        Where a hit may end within a block, one that they share a part of is the other's, too.
        """
        if not self._is_fine:
            return shared
        largest = max(int(each.block_size) for each in self._managers) // self._hash_tokens
        return -(-shared // largest) * largest

    # Sizes

    def page_of(self, tokens: int) -> float:
        """How many tokens a block stands for where contexts have so many: they take blocks in each group."""
        blocks = sum(_held(each, tokens) for each in self._managers)
        return tokens / blocks if blocks else self._hash_tokens

    def most_blocks(self, chunk_tokens: int, turns: int) -> int:
        """How many blocks a step takes at most that prefills so many tokens, or gives each of so many turns one."""
        return turns * len(self._managers) + sum(
            -(-chunk_tokens // int(each.block_size)) for each in self._managers
        )

    def unhashed_of(self, tokens: int) -> int:
        """How many blocks of a turn of so many tokens have no hash, about: the last one, or all in a window."""
        return sum(_held(each, tokens) if n in self._sparse else 1 for n, each in enumerate(self._managers))

    def told(self) -> list[str]:
        """Of each group in words: its kind, its blocks, and what of a context can be pinned there."""
        return [
            f"group {number}: {type(each).__name__}, blocks of {each.block_size} tokens: {self._keeps(number)}"
            for number, each in enumerate(self._managers)
        ]

    def _keeps(self, number: int) -> str:
        if not getattr(getattr(self._managers[number], "kv_cache_spec", None), "prefix_cacheable", True):
            return "nothing is kept of a turn that ended"
        if number not in self._sparse:
            return "every block is kept"
        interval = getattr(self._coordinator, "retention_interval", None)
        if interval is None:
            return "what a hit needs is kept at each block"
        between = f"each {interval} tokens and " if interval else ""
        return f"what a hit needs is kept {between}where a prompt ended: an answer is computed again"


class OneFullGroup(Groups):
    """One group of full attention: blocks themselves tell what is cached of a context, and are not looked up."""

    compute_again = False

    def key_of(self, request: Any) -> ContextKey | None:
        held = self._manager.get_blocks(request.request_id).blocks[0]
        count = min(len(request.block_hashes), len(held), request.num_computed_tokens // self._hash_tokens)
        if count == 0:
            return None
        return ContextKey(request.block_hashes[:count], tuple(held[:count]), self._hash_tokens)

    def needed(self, key: ContextKey) -> Sequence[Any]:
        """The blocks of the beginning of ``key`` that is cached.

        A block that still has its hash is taken as it is; to look one up costs ten times as much.
        """
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        pool, found = self._pool, []
        for block, block_hash in zip(key.blocks, key.hashes, strict=True):
            if block.block_hash == make_block_hash_with_group_id(block_hash, 0):
                found.append(block)
                continue
            others = pool.get_cached_block(block_hash, [0])
            if not others:
                break
            found.append(others[0])
        return found

    def needed_of_held(self, key: ContextKey) -> Sequence[Any]:
        return key.blocks

    def left_behind(self, key: ContextKey) -> Sequence[Any]:
        return ()

    def unused(self, key: ContextKey, first: int, most: int) -> list[Any]:
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        found: list[Any] = []
        for index in range(len(key.hashes) - 1, first - 1, -1):
            block, block_hash = key.blocks[index], key.hashes[index]
            if block.block_hash != make_block_hash_with_group_id(block_hash, 0):
                (block,) = self._pool.get_cached_block(block_hash, [0]) or (None,)
            if block is not None and not block.ref_cnt:
                found.append(block)
                if len(found) >= most:
                    break
        return found

    def page_of(self, tokens: int) -> float:
        return self._hash_tokens

    def unhashed_of(self, tokens: int) -> int:
        return 1


def _managers(scheduler: Any) -> Sequence[Any]:
    """vLLM's manager of each group."""
    return getattr(scheduler.kv_cache_manager.coordinator, "single_type_managers", ())


def _hash_tokens(scheduler: Any, pool: Any) -> int:
    """How many tokens there are to a hash; a block of a group may have several."""
    return int(getattr(pool, "hash_block_size", scheduler.block_size))


def _held(manager: Any, tokens: int) -> int:
    """How many blocks of its group a turn holds that has computed so many tokens."""
    return -(-tokens // int(manager.block_size)) - _left_behind(manager, tokens)


def _left_behind(manager: Any, tokens: int) -> int:
    """How many of the first blocks of so many tokens are not needed to go on."""
    return int(max(0, manager.get_num_skipped_tokens(tokens)) // manager.block_size)
