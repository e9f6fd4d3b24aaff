"""A seeded Llama so small that a step takes a millisecond, as one GGUF file with its tokenizer.

Its tokens are bytes, one pair of them, and three control tokens; what it says is noise, and varied.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

CONTEXT_LEN = 512
_CONTROLS = ("<|im_start|>", "<|im_end|>", "<|pad|>")
_NORMAL, _CONTROL = 1, 3
_HIDDEN, _MLP, _LAYERS, _HEADS, _KV_HEADS = 64, 128, 2, 4, 2
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_model(path: Path) -> Path:
    """Write it to `path`; the same bytes every time."""
    writer = GGUFWriter(path, "llama")
    _add_tokenizer(writer)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_MLP)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(CONTEXT_LEN)
    for name, weights in _weights().items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter) -> None:
    characters = sorted(ByteLevel.alphabet())  # each stands for one byte
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*characters, "th", *_CONTROLS]
    writer.add_token_list(tokens)
    writer.add_token_types([_NORMAL] * (len(characters) + 1) + [_CONTROL] * len(_CONTROLS))
    writer.add_token_merges(["t h"])  # there must be one
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(_TEMPLATE)


def _weights() -> dict[str, npt.NDArray[np.float32]]:
    """Large enough that the next token depends on much of what is before."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, 2.0 / columns**0.5, (rows, columns)).astype(np.float32)

    ones = np.ones(_HIDDEN, np.float32)
    kv = _HIDDEN // _HEADS * _KV_HEADS
    weights = {
        "token_embd.weight": matrix(257 + len(_CONTROLS), _HIDDEN) * np.float32(_HIDDEN**0.5),
        "output_norm.weight": ones,
        "output.weight": matrix(257 + len(_CONTROLS), _HIDDEN),
    }
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        weights |= {
            f"{block}attn_norm.weight": ones,
            f"{block}attn_q.weight": matrix(_HIDDEN, _HIDDEN),
            f"{block}attn_k.weight": matrix(kv, _HIDDEN),
            f"{block}attn_v.weight": matrix(kv, _HIDDEN),
            f"{block}attn_output.weight": matrix(_HIDDEN, _HIDDEN),
            f"{block}ffn_norm.weight": ones,
            f"{block}ffn_gate.weight": matrix(_MLP, _HIDDEN),
            f"{block}ffn_up.weight": matrix(_MLP, _HIDDEN),
            f"{block}ffn_down.weight": matrix(_HIDDEN, _MLP),
        }
    return weights
