"""The weights the forward pass reads; knows no file and no way of storing a matrix.

Matrices are torch's tensors, allocated whole here, or packed for the native kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from .config import ModelConfig
from .names import PlannedTensor

# D hidden size, d head size, F MLP size, V vocabulary, H query heads, K key/value heads,
# E = (H + 2K) d, G = 2F. A matrix has one row for each output, as torch's linear takes it.

W = TypeVar("W")  # a matrix, or several whose outputs follow each other


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """One layer; the norms are float32 where matrices are packed.

    Rows of `qkv_ED`: the queries' H d, then the keys' K d, then the values' K d. Within a
    head, RoPE turns row i together with row i + d/2. Rows of `gate_up_GD`: F of the gate, then
    F of the up projection. `out_DE` has H d columns.
    """

    attn_norm_D: Tensor
    qkv_ED: W
    out_DE: W
    mlp_norm_D: Tensor
    gate_up_GD: W
    down_DF: W


@dataclass(frozen=True, slots=True)
class LlamaWeights(Generic[W]):
    """A whole model; `head_VD` is the very matrix `embed_VD` where the two are tied."""

    embed_VD: W
    layers: tuple[LayerWeights[W], ...]
    norm_D: Tensor
    head_VD: W


def allocate(config: ModelConfig, dtype: torch.dtype) -> LlamaWeights[Tensor]:
    """Uninitialised weights in CPU memory.

    The two largest matrices of a layer lie in memory column by column: with one row of input
    that is how torch's float32 product streams them at full speed, by 1.4 to 1.7 times.
    """

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def by_column(rows: int, columns: int) -> Tensor:
        return torch.empty((columns, rows), dtype=dtype).t()

    hidden, mlp, head = config.hidden_size, config.intermediate_size, config.head_dim
    layers = tuple(
        LayerWeights(
            attn_norm_D=empty(hidden),
            qkv_ED=by_column((config.num_heads + 2 * config.num_kv_heads) * head, hidden),
            out_DE=empty(hidden, config.num_heads * head),
            mlp_norm_D=empty(hidden),
            gate_up_GD=by_column(2 * mlp, hidden),
            down_DF=empty(hidden, mlp),
        )
        for _ in range(config.num_layers)
    )
    embed_VD = empty(config.vocab_size, hidden)
    head_VD = embed_VD if config.tie_word_embeddings else empty(config.vocab_size, hidden)
    return LlamaWeights(embed_VD, layers, empty(hidden), head_VD)


def destination(
    weights: LlamaWeights[Tensor], config: ModelConfig, tensor: PlannedTensor
) -> Tensor:
    """The view of `weights` that a checkpoint's tensor fills, of the tensor's shape."""
    layer = weights.layers[tensor.layer]
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    mlp = config.intermediate_size
    match tensor.part:
        case "embed":
            return weights.embed_VD
        case "norm":
            return weights.norm_D
        case "head":
            return weights.head_VD
        case "attn_norm":
            return layer.attn_norm_D
        case "q":
            return layer.qkv_ED[:queries]
        case "k":
            return layer.qkv_ED[queries : queries + keys]
        case "v":
            return layer.qkv_ED[queries + keys :]
        case "out":
            return layer.out_DE
        case "mlp_norm":
            return layer.mlp_norm_D
        case "gate":
            return layer.gate_up_GD[:mlp]
        case "up":
            return layer.gate_up_GD[mlp:]
        case "down":
            return layer.down_DF
