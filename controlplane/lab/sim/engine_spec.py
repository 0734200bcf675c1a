"""The engine of a simulated run, before it is built."""

from dataclasses import dataclass

from controlplane.core.errors import require
from controlplane.core.presets import Preset
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.lower_tiers import TierSpec
from controlplane.lab.sim.publisher import Publisher

MAX_RUNNING = 256  # turns that an engine runs at once, as a stock SGLang on a large device
LINK_GB_PER_S = 50.0  # one 400 Gb/s port an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The engine to simulate, and how many of it; 0 stands for the profile's own size.

    ``link_gb_per_s``: at which one engine sends another KV, in 10^9 bytes a second; 0: none is sent.
    """

    profile: Profile
    pool_tokens: int = 0
    block_tokens: int = 16
    chunk_tokens: int = 8192
    max_running: int = MAX_RUNNING
    max_context_tokens: int = 0
    tiers: tuple[TierSpec, ...] = ()  # KV memory below the device, the fastest first
    replicas: int = 1
    link_gb_per_s: float = LINK_GB_PER_S

    def __post_init__(self) -> None:
        require("max_running", self.max_running, low=1, high=1_000_000)
        require("replicas", self.replicas, low=1, high=1024)
        require("link_gb_per_s", self.link_gb_per_s, low=0, high=1e6)

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

    def build(self, preset: Preset, publisher: Publisher | None = None) -> EngineModel:
        """An engine with the preset's memory and priority policies."""
        require("pool_tokens", self.pool_tokens, low=0, high=float("inf"))
        require("block_tokens", self.block_tokens, low=1, high=65_536)
        return EngineModel(
            self.profile,
            pool_blocks=self.size_tokens // self.block_tokens,
            block_tokens=self.block_tokens,
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            max_context_tokens=self.max_context_tokens or None,
            memory=preset.memory,
            priority=preset.priority,
            publisher=publisher,
            tiers=self.tiers,
        )
