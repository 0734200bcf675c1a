"""Models of the A/B: Llama shapes without weights, and a tokenizer to which one word is one token.

It is the engine tests' tiny model made larger, so that its prefill is costly enough to thrash, with the load
generator's words in its vocabulary: a prompt's length is exact, and two programs share only their system message.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_model import write_tiny_model

from controlplane.lab.load.prompts import WORDS

_20M: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "20m": _20M,
    "gemma3": {  # with five sliding windows and one full attention, each a KV cache group of its own
        **_20M,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 64,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    },
    "tiny": {"head_dim": 32},  # vLLM has no attention for the tests' 16 on a CPU
    "8b": {  # Llama-3.1-8B's
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    },
}
"""What differs from the tiny model's shape, by name."""

_FIRST_FREE = 3  # after the special tokens


def write_model(folder: Path, shape: str) -> Path:
    """Write the model into ``folder``, and return that. Serve it with ``--load-format dummy``."""
    write_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text()) | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = vocabulary(tokenizer["model"]["vocab"], config["vocab_size"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_max_length"] = config["max_position_embeddings"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def vocabulary(tiny: Mapping[str, int], size: int) -> dict[str, int]:
    """The tiny model's special tokens, the load generator's words, then ``w123`` for what the model says."""
    words = [word for word, index in sorted(tiny.items(), key=lambda item: item[1]) if index < _FIRST_FREE]
    words += dict.fromkeys(WORDS)
    words += [f"w{index}" for index in range(len(words), size)]
    return {word: index for index, word in enumerate(words)}
