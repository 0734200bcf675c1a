"""A model folder for the engine tests: a tiny Llama shape without weights, and a tokenizer of words.

One word (``w123``) is one token, so that a test writes prompts of an exact length. Serve it with
``--load-format dummy``.
"""

import json
from pathlib import Path

VOCABULARY = 2048
CONTEXT_TOKENS = 16_384
_SPECIAL = ("<unk>", "<s>", "</s>")

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rope_theta": 500_000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_bias": False,
    "mlp_bias": False,
}
_EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": CONTEXT_TOKENS,
    "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
}


def write_tiny_model(folder: Path, head_dim: int = 16, *, experts: bool = False) -> Path:
    """Write the model into ``folder``, and return that.

    ``head_dim``: vLLM has no attention for 16 on a CPU. ``experts``: a mixture of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: index for index, word in enumerate(_SPECIAL)}
    vocabulary |= {f"w{index}": index for index in range(len(_SPECIAL), VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    files = {
        "config.json": {**_CONFIG, "head_dim": head_dim, **(_EXPERTS if experts else {})},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": _TOKENIZER_CONFIG,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def words(seed: int, count: int) -> str:
    """``count`` words, one token each; another ``seed`` gives other ones from the first word on.

    The first word is the seed's own, so that two prompts share no cached prefix.
    """
    usable = VOCABULARY - len(_SPECIAL)
    chosen = ((seed + position * (2 * seed + 1)) % usable for position in range(count))
    return " ".join(f"w{len(_SPECIAL) + index}" for index in chosen)
