"""The engine of a simulated run, before it is built."""

from dataclasses import dataclass

from controlplane.core.policies.protocols import MemoryPolicy, PriorityPolicy
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.lower_tiers import TierSpec
from controlplane.lab.sim.turn_events import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An experiment's hardware with its profile and tiers read (``lab/simulate.py:engine_of``)."""

    profile: Profile
    pool_tokens: int
    block_tokens: int
    chunk_tokens: int
    max_running: int
    max_context_tokens: int
    tiers: tuple[TierSpec, ...]
    replicas: int
    link_gb_per_s: float

    @property
    def size_tokens(self) -> int:
        """One engine's KV pool."""
        return self.pool_tokens or self.profile.kv_pool_tokens

    @property
    def context_tokens(self) -> int:
        """The longest context that an engine takes."""
        whole_tokens = self.size_tokens // self.block_tokens * self.block_tokens
        return min(whole_tokens, self.max_context_tokens or self.profile.max_context_tokens)

    @property
    def link_tokens_per_s(self) -> float:
        """Tokens' KV that one engine sends another in a second; 0: none can be sent."""
        size = self.profile.kv_bytes_per_token
        return self.link_gb_per_s * 1e9 / size if size else 0.0

    def build(
        self,
        publisher: Publisher | None = None,
        *,
        memory: MemoryPolicy | None = None,
        priority: PriorityPolicy | None = None,
    ) -> EngineModel:
        """One engine; the policies of a stock one where none are given."""
        return EngineModel(
            self.profile,
            pool_blocks=self.size_tokens // self.block_tokens,
            block_tokens=self.block_tokens,
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            max_context_tokens=self.max_context_tokens,
            memory=memory,
            priority=priority,
            publisher=publisher,
            tiers=self.tiers,
        )
