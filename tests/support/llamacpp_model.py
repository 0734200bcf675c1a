"""A small random Llama for llama.cpp's server, as a GGUF file: ``python llamacpp_model.py OUT.gguf``.

What it writes are words from ``w259`` to ``w2047``; a word that it reads is some tokens. It needs gguf and numpy,
and nothing of this checkout.
"""

import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, FORWARD, WORDS = 256, 4, 4, 2, 512, 2048
HEAD = HIDDEN // HEADS
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def main(out: str) -> None:
    """Write the model to ``out``."""
    writer = gguf.GGUFWriter(out, "llama")
    _write_shape(writer)
    _write_words(writer)
    _write_weights(writer, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(WORDS)
    writer.add_file_type(0)


def _write_words(writer: gguf.GGUFWriter) -> None:
    kind = gguf.TokenType
    words = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256]
    scores = [0.0] * len(words)
    for number in range(len(words), WORDS):
        words.append(f"\u2581w{number}".encode())
        kinds.append(kind.NORMAL)
        scores.append(-float(number))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores(scores)
    writer.add_token_types([int(each) for each in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def _write_weights(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.05).astype(np.float32))

    def add_ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    add("token_embd", WORDS, HIDDEN)
    add_ones("output_norm")
    add("output", WORDS, HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_q", HEADS * HEAD, HIDDEN)
        add(f"{block}.attn_k", KV_HEADS * HEAD, HIDDEN)
        add(f"{block}.attn_v", KV_HEADS * HEAD, HIDDEN)
        add(f"{block}.attn_output", HIDDEN, HEADS * HEAD)
        add(f"{block}.ffn_gate", FORWARD, HIDDEN)
        add(f"{block}.ffn_up", FORWARD, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, FORWARD)
        add_ones(f"{block}.attn_norm")
        add_ones(f"{block}.ffn_norm")


if __name__ == "__main__":
    main(sys.argv[1])
