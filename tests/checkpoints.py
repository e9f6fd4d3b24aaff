"""Tiny Llama checkpoints, written by the libraries that other people write theirs with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from espalier.kernels.packing import PackedLinear, unpack
from espalier.runtime.models.loader import LoadedModel
from espalier.runtime.models.weights import LayerWeights, LlamaWeights

State = dict[str, Tensor]

HIDDEN, MLP, VOCAB, HEADS, KV_HEADS, HEAD = 64, 96, 160, 4, 2, 16


class Pretrained(Protocol):
    """The typed part of a transformers model that tests use."""

    def to(self, dtype: torch.dtype) -> Pretrained: ...

    def state_dict(self) -> State: ...

    def save_pretrained(self, save_directory: Path, max_shard_size: str = "1GB") -> None: ...


def random_llama(config: LlamaConfig) -> Pretrained:
    """A model of seeded random weights, norms included."""
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return cast(Pretrained, model)


def tiny_llama(*, tied: bool) -> Pretrained:
    return random_llama(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=MLP,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
        )
    )


def assert_same_weights(
    loaded: LoadedModel[Tensor], state: State, dtype: torch.dtype = torch.float32
) -> None:
    """Every weight is bitwise the one of a transformers state dictionary, rounded to `dtype`."""

    def check(found: Tensor, *names: str) -> None:
        expected = torch.cat([state[name] for name in names]).to(dtype)
        assert found.dtype == dtype
        assert found.is_contiguous() or found.t().is_contiguous()
        assert torch.equal(found, expected), names

    weights = loaded.weights
    check(weights.embed_VD, "model.embed_tokens.weight")
    check(weights.norm_D, "model.norm.weight")
    check(weights.head_VD, "lm_head.weight")
    assert (weights.head_VD is weights.embed_VD) == loaded.config.tie_word_embeddings
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        check(layer.attn_norm_D, f"{prefix}input_layernorm.weight")
        check(layer.qkv_ED, *(f"{attention}{part}_proj.weight" for part in "qkv"))
        check(layer.out_DE, f"{attention}o_proj.weight")
        check(layer.mlp_norm_D, f"{prefix}post_attention_layernorm.weight")
        check(layer.gate_up_GD, f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")
        check(layer.down_DF, f"{mlp}down_proj.weight")


def unpacked(weights: LlamaWeights[PackedLinear]) -> LlamaWeights[Tensor]:
    """The float32 weights that packed ones stand for."""

    def whole(linear: PackedLinear) -> Tensor:
        return torch.cat([unpack(matrix) for matrix in linear.matrices])

    embed_VD = whole(weights.embed_VD)
    layers = tuple(
        LayerWeights(
            attn_norm_D=layer.attn_norm_D,
            qkv_ED=whole(layer.qkv_ED),
            out_DE=whole(layer.out_DE),
            mlp_norm_D=layer.mlp_norm_D,
            gate_up_GD=whole(layer.gate_up_GD),
            down_DF=whole(layer.down_DF),
        )
        for layer in weights.layers
    )
    tied = weights.head_VD is weights.embed_VD
    head_VD = embed_VD if tied else whole(weights.head_VD)
    return LlamaWeights(embed_VD, layers, weights.norm_D, head_VD)


_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def interleave(matrix: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """The row order of llama.cpp's converter (`LlamaModel.permute`)."""
    rows, columns = matrix.shape
    halves = matrix.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


_NO_OTHERS: dict[str, GGMLQuantizationType] = {}


def write_gguf(
    path: Path,
    state: State,
    *,
    matrix_type: GGMLQuantizationType,
    tied: bool,
    other_types: Mapping[str, GGMLQuantizationType] = _NO_OTHERS,
) -> State:
    """Write a tiny Llama as llama.cpp's converter does; returns the state a reader must see.

    `other_types` are those of single matrices, by name.
    """
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if not tied:
        names["output.weight"] = "lm_head.weight"
    for index in range(2):
        for ours, theirs in _GGUF_LAYER.items():
            names[f"blk.{index}.{ours}.weight"] = f"model.layers.{index}.{theirs}.weight"
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(VOCAB)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_context_length(128)
    writer.add_tensor("rope_freqs.weight", np.ones(HEAD // 2, np.float32))
    seen: State = {}
    for ours, theirs in names.items():
        array = cast("npt.NDArray[np.float32]", state[theirs].numpy())
        kind = other_types.get(ours, matrix_type) if array.ndim == 2 else GGMLQuantizationType.F32
        stored = quantize(array, kind)
        seen[theirs] = torch.tensor(dequantize(stored, kind))
        if "attn_q" in ours or "attn_k" in ours:
            heads = HEADS if "attn_q" in ours else KV_HEADS
            stored = quantize(interleave(array, heads), kind)
        writer.add_tensor(ours, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    seen.setdefault("lm_head.weight", seen["model.embed_tokens.weight"])
    return seen
