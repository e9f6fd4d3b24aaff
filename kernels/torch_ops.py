"""The operations of a forward pass on torch tensors, made of those in `reference`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from . import reference
from .ops import AttentionRows, Heads, Norm


@dataclass(frozen=True, slots=True, eq=False)
class TorchStep:
    """The tokens of one step: their ids, slots and rotations, and the rows they belong to."""

    ids_T: Tensor
    slots_T: Tensor
    cos_Td: Tensor
    sin_Td: Tensor
    rows: AttentionRows


class TorchOps:
    """`ops.Ops` for one step; weights are dense matrices, one row for each output."""

    def __init__(
        self, heads: Heads, k_pool_LSKd: Tensor, v_pool_LSKd: Tensor, step: TorchStep
    ) -> None:
        self._heads = heads
        self._k_pool_LSKd = k_pool_LSKd
        self._v_pool_LSKd = v_pool_LSKd
        self._step = step

    def embed(self, weight_VD: Tensor) -> Tensor:
        return reference.embed(self._step.ids_T, weight_VD)

    def linear(
        self,
        x_TD: Tensor,
        weight_ED: Tensor,
        *,
        norm: Norm | None = None,
        bias_E: Tensor | None = None,
        residual_TE: Tensor | None = None,
    ) -> Tensor:
        if norm is not None:
            x_TD = reference.rms_norm(x_TD, norm.weight_D, norm.eps)
        y_TE = reference.linear(x_TD, weight_ED)
        if bias_E is not None:
            y_TE = y_TE + bias_E
        return y_TE if residual_TE is None else residual_TE + y_TE

    def swiglu(self, x_TD: Tensor, gate_up_GD: Tensor, *, norm: Norm | None = None) -> Tensor:
        return reference.silu_mul(self.linear(x_TD, gate_up_GD, norm=norm))

    def attention(self, qkv_TE: Tensor, layer: int) -> Tensor:
        heads, step = self._heads, self._step
        k_pool_SKd, v_pool_SKd = self._k_pool_LSKd[layer], self._v_pool_LSKd[layer]
        qkv_THd = qkv_TE.view(len(qkv_TE), -1, heads.head_dim)
        k_start, v_start = heads.num_heads, heads.num_heads + heads.num_kv_heads
        qk_THd = reference.apply_rope(qkv_THd[:, :v_start], step.cos_Td, step.sin_Td)
        reference.write_kv(
            k_pool_SKd, v_pool_SKd, step.slots_T, qk_THd[:, k_start:], qkv_THd[:, v_start:]
        )
        o_THd = reference.paged_extend_attention(
            qk_THd[:, :k_start], k_pool_SKd, v_pool_SKd, step.rows, heads.scale
        )
        return o_THd.flatten(1)
