"""Groups of KV cache as models have them, for vLLM's own scheduler, pool and coordinator without a model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

CHUNK_TOKENS, MOST_TOKENS, AT_ONCE = 256, 1024, 6


def full(block: int) -> KVCacheSpec:
    """Full attention."""
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)


def latent(block: int) -> KVCacheSpec:
    """DeepSeek's."""
    return MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)


def window(block: int, tokens: int) -> KVCacheSpec:
    """A sliding window."""
    return SlidingWindowSpec(
        block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=tokens
    )


def states(block: int) -> KVCacheSpec:
    """Mamba's states, or those of linear attention."""
    return MambaSpec(block_size=block, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's groups. ``retention``: vLLM's setting; ``eagle``: the groups with a speculative head's layers."""

    groups: Sequence[KVCacheSpec]
    blocks: int
    retention: int | None = 0
    eagle: Sequence[int] = field(default=())

    @property
    def has_states(self) -> bool:
        return any(isinstance(each, MambaSpec) for each in self.groups)


SHAPES = {
    "full": Shape(groups=[full(16)], blocks=110),
    "latent": Shape(groups=[latent(16)], blocks=110),
    "only a window": Shape(groups=[window(16, 100)], blocks=60),
    "full and a window": Shape(groups=[full(16), window(16, 100)], blocks=180),
    "five windows and full": Shape(groups=[window(16, 100)] * 5 + [full(16)], blocks=420),
    "full and states": Shape(groups=[full(64), states(64)], blocks=44),
    "three states and full": Shape(groups=[states(64)] * 3 + [full(64)], blocks=54),
    "full, a window and states": Shape(groups=[full(32), window(32, 100), states(32)], blocks=110),
    "windows of other blocks": Shape(groups=[full(32), window(16, 100)], blocks=110),
    "states of larger blocks": Shape(groups=[full(16), states(64)], blocks=140),
    "a window kept everywhere": Shape(groups=[full(16), window(16, 100)], blocks=220, retention=None),
    "states at intervals": Shape(groups=[full(32), states(32)], blocks=80, retention=128),
    "a speculative head": Shape(groups=[full(16), window(16, 100), full(16)], blocks=280, eagle=(2,)),
}


def make_scheduler(chosen: type, shape: Shape, model: Path) -> Any:
    """Build a scheduler of vLLM's, as EngineCore does. ``model``: a folder whose model is never loaded."""
    has_states = shape.has_states
    scheduling = SchedulerConfig(
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_model_len=MOST_TOKENS,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    block = min(each.block_size for each in shape.groups)
    cache = CacheConfig(block_size=block, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MOST_TOKENS
        ),
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = shape.blocks
    cache.mamba_cache_mode = "align" if has_states else "none"
    groups = [
        KVCacheGroupSpec([f"layer.{number}"], spec, is_eagle_group=number in shape.eagle)
        for number, spec in enumerate(shape.groups)
    ]
    kv = KVCacheConfig(
        num_blocks=shape.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=shape.retention,
    )
    block_size, hash_block_size = resolve_kv_cache_block_sizes(kv, config)
    if has_states:
        cache.block_size = max(each.block_size for each in shape.groups if isinstance(each, MambaSpec))
    return chosen(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
    )
