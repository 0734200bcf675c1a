"""One model call as the engine model sees it, and its progress."""

from dataclasses import dataclass, field

from controlplane.core.model.causes import Change
from controlplane.core.model.errors import ControlPlaneError
from controlplane.lab.sim.decode_batch import Decoding
from controlplane.lab.sim.prefix_cache import Node, PrefixCache


class ContextTooLong(ControlPlaneError):
    """The call's prompt and output do not fit the engine's context or its pool."""

    def __init__(self, prompt_tokens: int, output_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            f"a prompt of {prompt_tokens} tokens and an output of {output_tokens} exceed "
            f"the engine's limit of {limit_tokens} tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A turn to run: sizes only."""

    turn_id: str
    program_id: str
    prompt_tokens: int
    output_tokens: int
    reusable_tokens: int = 0  # leading tokens equal to this program's previous context
    prefix_group: str = ""
    prefix_tokens: int = 0  # leading tokens that all calls of the group share
    arrived_at_ns: int = 0  # the program's
    tool: str = ""
    tool_calls: int = -1
    trace: str = ""  # the client's span
    change: Change = field(default_factory=Change)  # of the prompt, as a gate saw it
    context: str = ""  # the cached context that it continues, where that is not simply its program's

    @property
    def cache_key(self) -> str:
        return self.context or self.program_id

    def prefix_blocks(self, block_tokens: int) -> int:
        """Whole blocks of the shared prefix; one prompt token at least is the call's own."""
        return min(self.prefix_tokens, self.prompt_tokens - 1) // block_tokens if self.prefix_group else 0


@dataclass(slots=True, eq=False)
class Progress:
    """Where a call stands. It is waiting, then prefilling, then decoding; a retraction sends it back."""

    call: Call
    serial: int
    queued_ns: int
    prefix_blocks: int  # of the shared prefix, that this call covers
    scheduled_ns: int = -1  # first
    started_ns: int = -1  # last; -1 while it waits
    service_ns: int = 0  # up to the last retraction
    produced_tokens: int = 0  # up to the last retraction
    cached_tokens: int = 0  # found at the first start
    loaded_tokens: int = 0  # of those, below the device
    recomputed_tokens: int = 0  # prefilled once more, after it was retracted
    loaded_blocks: int = 0  # from below the device, by the next chunk
    load_ps: int = 0  # what that takes
    node: Node | None = None
    prefix_missing_blocks: int = 0  # of the shared prefix, that it computes itself
    context_blocks: int = 0  # found of the program's own context
    shared_blocks: int = 0  # held by the tree
    own_blocks: int = 0
    kv_tokens: int = 0  # prefilled
    pieces: list[int] = field(default_factory=list)  # how many were, after each of its chunks
    first_token_ns: int = -1
    decoding: Decoding | None = None
    squeezed: bool = False  # begun with a part, though there was no room for the whole
    aborted: bool = False
    retracted: bool = False
    skips_cache: bool = False  # it must run without the tree's blocks to fit

    @property
    def goal_tokens(self) -> int:
        """Tokens to prefill: the prompt, and after a retraction the output so far."""
        return self.call.prompt_tokens + self.produced_tokens

    def piece_ends(self, block_tokens: int) -> list[int]:
        """Where the pieces of its own context end, in blocks behind the shared prefix."""
        return [tokens // block_tokens - self.prefix_blocks for tokens in self.pieces]

    @property
    def recomputed_ratio(self) -> float:
        """The share of what it prefills that was computed before: its lost context, or all after a retraction."""
        if self.retracted:
            return 1.0
        lost_tokens = self.call.reusable_tokens - self.cached_tokens
        return max(0.0, min(1.0, lost_tokens / max(1, self.call.prompt_tokens - self.cached_tokens)))

    @property
    def remaining_tokens(self) -> int:
        """Output still to produce when it is not decoding."""
        return self.call.output_tokens - self.produced_tokens

    def cached_blocks(self, cache: PrefixCache, block_tokens: int) -> tuple[int, int]:
        """Blocks of the shared prefix and of the program's own context that the cache holds for it."""
        if self.skips_cache:
            return 0, 0
        call, base = self.call, self.prefix_blocks
        prefix = cache.find_prefix(call.prefix_group) if base else None
        prefix_blocks = min(prefix.blocks, base) if prefix is not None else 0
        node = cache.find(call.cache_key)
        if node is None or node.base_blocks != base or node.parent is not prefix:
            return prefix_blocks, 0
        return prefix_blocks, min(node.blocks, self.reusable_blocks(block_tokens))

    def reusable_blocks(self, block_tokens: int) -> int:
        """The beginning of the program's own context that it shares with the last call."""
        # After a retraction the cached context is this call's own prompt.
        reusable = self.call.prompt_tokens if self.retracted else self.call.reusable_tokens
        return max(0, min(reusable, self.goal_tokens - 1) // block_tokens - self.prefix_blocks)
