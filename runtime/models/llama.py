"""The Llama forward pass; knows operations and weights, no request, no tree and no device.

Shape suffixes are those of `espalier.kernels.ops`; N tokens whose logits are wanted.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from espalier.kernels.ops import Heads, Norm, Ops

from .config import ModelConfig
from .weights import LayerWeights, LlamaWeights

X = TypeVar("X")
W = TypeVar("W")


class LlamaModel(Generic[W]):
    """Llama-family decoder (RMSNorm, RoPE, grouped-query attention, SwiGLU)."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights[W]) -> None:
        self.config = config
        self._weights = weights
        self._eps = config.rms_norm_eps

    @property
    def heads(self) -> Heads:
        return Heads(self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)

    def forward(self, ops: Ops[X, W]) -> X:
        """Hidden states x_TD of the step's tokens, before the final norm."""
        x_TD = ops.embed(self._weights.embed_VD)
        for index, layer in enumerate(self._weights.layers):
            x_TD = self._layer(ops, x_TD, layer, index)
        return x_TD

    def logits(self, ops: Ops[X, W], x_ND: X) -> X:
        """Logits_NV of the given hidden states."""
        return ops.linear(x_ND, self._weights.head_VD, norm=Norm(self._weights.norm_D, self._eps))

    def _layer(self, ops: Ops[X, W], x_TD: X, layer: LayerWeights[W], index: int) -> X:
        qkv_TE = ops.linear(x_TD, layer.qkv_ED, norm=Norm(layer.attn_norm_D, self._eps))
        o_TE = ops.attention(qkv_TE, index)
        x_TD = ops.linear(o_TE, layer.out_DE, residual_TE=x_TD)
        x_TF = ops.swiglu(x_TD, layer.gate_up_GD, norm=Norm(layer.mlp_norm_D, self._eps))
        return ops.linear(x_TF, layer.down_DF, residual_TE=x_TD)
