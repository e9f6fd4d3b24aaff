"""The Llama forward pass over a step's rows; knows ops and weights, no request and no tree.

Shape suffixes are those of `espalier.kernels.ops`; L layers, N rows that need logits.
"""

from __future__ import annotations

import math

from torch import Tensor

from espalier.kernels.ops import AttentionRows, Ops

from .config import ModelConfig
from .rope import rope_tables
from .weights import LayerWeights, LlamaWeights


class LlamaModel:
    """Llama-family decoder (RMSNorm, RoPE, grouped-query attention, SwiGLU).

    Reads keys and values from the pool only, and in each layer writes those of all rows
    before any row attends.
    """

    def __init__(
        self, config: ModelConfig, weights: LlamaWeights, ops: Ops, context_len: int
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self._cos_Pd, self._sin_Pd = rope_tables(config.rope, config.head_dim, context_len)

    def forward(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        slots_T: Tensor,
        k_pool_LSKd: Tensor,
        v_pool_LSKd: Tensor,
        rows: AttentionRows,
    ) -> Tensor:
        """Hidden states x_TD of all new tokens, before the final norm; fills their slots."""
        ops = self._ops
        x_TD = ops.embed(ids_T, self._weights.embed_VD)
        cos_Td, sin_Td = self._cos_Pd[positions_T], self._sin_Pd[positions_T]
        for index, layer in enumerate(self._weights.layers):
            k_pool_SKd, v_pool_SKd = k_pool_LSKd[index], v_pool_LSKd[index]
            q_THd, k_TKd, v_TKd = self._project(layer, x_TD, cos_Td, sin_Td)
            ops.write_kv(k_pool_SKd, v_pool_SKd, slots_T, k_TKd, v_TKd)
            o_THd = ops.paged_extend_attention(q_THd, k_pool_SKd, v_pool_SKd, rows, self._scale)
            x_TD = x_TD + ops.linear(o_THd.flatten(1), layer.out_DE)
            x_TD = x_TD + self._mlp(layer, x_TD)
        return x_TD

    def logits(self, x_ND: Tensor) -> Tensor:
        """Logits_NV of the given hidden states."""
        normed_ND = self._ops.rms_norm(x_ND, self._weights.norm_D, self.config.rms_norm_eps)
        return self._ops.linear(normed_ND, self._weights.head_VD)

    def _project(
        self, layer: LayerWeights, x_TD: Tensor, cos_Td: Tensor, sin_Td: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, ops = self.config, self._ops
        normed_TD = ops.rms_norm(x_TD, layer.attn_norm_D, config.rms_norm_eps)
        qkv_THd = ops.linear(normed_TD, layer.qkv_ED).view(len(x_TD), -1, config.head_dim)
        k_start = config.num_heads
        v_start = k_start + config.num_kv_heads
        qk_THd = ops.apply_rope(qkv_THd[:, :v_start], cos_Td, sin_Td)
        return qk_THd[:, :k_start], qk_THd[:, k_start:], qkv_THd[:, v_start:]

    def _mlp(self, layer: LayerWeights, x_TD: Tensor) -> Tensor:
        ops = self._ops
        normed_TD = ops.rms_norm(x_TD, layer.mlp_norm_D, self.config.rms_norm_eps)
        return ops.linear(ops.silu_mul(ops.linear(normed_TD, layer.gate_up_GD)), layer.down_DF)
