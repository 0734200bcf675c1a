"""Tiny models of several kinds of attention, without weights, for vLLM on a CPU, which fills the rest in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMON = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
_LINEAR = {
    "head_dim": 64,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``blocks``: a pool with room for the longest context, and not for all programs' contexts."""

    architecture: str
    kind: str
    blocks: int
    config: Mapping[str, Any]


MODELS: Mapping[str, Model] = {
    "llama": Model(
        architecture="LlamaForCausalLM",
        kind="llama",
        blocks=130,
        config={"head_dim": 64, "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    ),
    "gemma3": Model(
        architecture="Gemma3ForCausalLM",
        kind="gemma3_text",
        blocks=440,
        config={
            "head_dim": 64,
            "num_hidden_layers": 6,
            "sliding_window": 256,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
    ),
    "gptoss": Model(
        architecture="GptOssForCausalLM",
        kind="gpt_oss",
        blocks=150,
        config={
            "head_dim": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "sliding_window": 128,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "qwen3next": Model(
        architecture="Qwen3NextForCausalLM",
        kind="qwen3_next",
        blocks=24,
        config={
            **_LINEAR,
            **_EXPERTS,
            "num_experts": 4,
            "shared_expert_intermediate_size": 128,
            "full_attention_interval": 4,
        },
    ),
    "qwen35": Model(  # vLLM imports torchvision for it
        architecture="Qwen3_5ForCausalLM",
        kind="qwen3_5_text",
        blocks=24,
        config=_LINEAR,
    ),
    "nemotronh": Model(
        architecture="NemotronHForCausalLM",
        kind="nemotron_h",
        blocks=37,
        config={
            "head_dim": 64,
            "layers_block_type": ["mamba", "mlp", "mamba", "attention", "mamba", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 64,
            "n_groups": 1,
            "ssm_state_size": 64,
            "conv_kernel": 4,
            "expand": 2,
            "chunk_size": 128,
        },
    ),
    "granite": Model(
        architecture="GraniteMoeHybridForCausalLM",
        kind="granitemoehybrid",
        blocks=37,
        config={
            "num_hidden_layers": 4,
            "layer_types": ["mamba"] * 3 + ["attention"],
            "mamba_n_heads": 8,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 512,
            "position_embedding_type": "nope",
        },
    ),
    "deepseek": Model(
        architecture="DeepseekV2ForCausalLM",
        kind="deepseek_v2",
        blocks=130,
        config={
            **_EXPERTS,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
        },
    ),
}


def write_model(folder: Path, name: str) -> Path:
    """Write its configuration into ``folder``, and return that."""
    model = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = {**_COMMON, **model.config, "architectures": [model.architecture], "model_type": model.kind}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
