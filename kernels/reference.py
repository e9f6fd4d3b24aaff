"""Every op in plain torch: the specification, and the slow path that fast kernels are
tested against. The module satisfies `ops.Ops`; shape suffixes are explained there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .ops import AttentionRows


def embed(ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    return F.embedding(ids_T, weight_VD)


def linear(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    return F.linear(x_TD, weight_ED)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    x32_TD = x_TD.float()
    scale_T1 = torch.rsqrt(x32_TD.square().mean(-1, keepdim=True) + eps)
    return (x32_TD * scale_T1).to(x_TD.dtype) * weight_D


def apply_rope(x_THd: Tensor, cos_Td: Tensor, sin_Td: Tensor) -> Tensor:
    low, high = x_THd.chunk(2, dim=-1)
    rotated = torch.cat((-high, low), dim=-1)
    return x_THd * cos_Td[:, None, :] + rotated * sin_Td[:, None, :]


def write_kv(
    k_pool_SKd: Tensor, v_pool_SKd: Tensor, slots_T: Tensor, k_TKd: Tensor, v_TKd: Tensor
) -> None:
    k_pool_SKd.index_copy_(0, slots_T, k_TKd)
    v_pool_SKd.index_copy_(0, slots_T, v_TKd)


def silu_mul(gate_up_TG: Tensor) -> Tensor:
    gate, up = gate_up_TG.chunk(2, dim=-1)
    return F.silu(gate) * up


def paged_extend_attention(
    q_THd: Tensor, k_pool_SKd: Tensor, v_pool_SKd: Tensor, rows: AttentionRows, scale: float
) -> Tensor:
    num_tokens, _, head_dim = q_THd.shape
    # GQA: the G = H / K query heads of one key/value head are neighbours.
    q_TKGd = q_THd.view(num_tokens, k_pool_SKd.shape[1], -1, head_dim)
    outputs: list[Tensor] = []
    first = 0
    for length, slots in zip(rows.lengths, rows.slots, strict=True):
        k_KPd, v_KPd = _read(k_pool_SKd, slots), _read(v_pool_SKd, slots)
        outputs.append(_attend(q_TKGd[first : first + length], k_KPd, v_KPd, scale))
        first += length
    assert first == num_tokens, f"the rows hold {first} tokens, q holds {num_tokens}"
    return torch.cat(outputs).view(q_THd.shape)


def _read(pool_SKd: Tensor, slots: slice | Tensor) -> Tensor:
    """Keys or values in the order of positions, [K, P, d]: a view where that is one run."""
    if isinstance(slots, slice):
        return pool_SKd[slots].transpose(0, 1)
    return pool_SKd.index_select(0, slots).transpose(0, 1)


def _attend(q_nKGd: Tensor, k_KPd: Tensor, v_KPd: Tensor, scale: float) -> Tensor:
    """The last n of P positions, causally; one of them alone sees all and needs no mask.

    The G heads of a key/value head stand as G * n queries of it, so that its keys and values
    are read once.
    """
    num_queries, num_kv_heads, group, head_dim = q_nKGd.shape
    q_KMd = q_nKGd.permute(1, 2, 0, 3).reshape(num_kv_heads, group * num_queries, head_dim)
    visible_MP: Tensor | None = None
    if num_queries > 1:
        num_positions = k_KPd.shape[1]
        visible_nP = torch.ones(num_queries, num_positions, dtype=torch.bool, device=q_KMd.device)
        visible_MP = visible_nP.tril_(num_positions - num_queries).repeat(group, 1)
    o_KMd = F.scaled_dot_product_attention(
        q_KMd[None], k_KPd[None], v_KPd[None], attn_mask=visible_MP, scale=scale
    )
    return o_KMd.view(num_kv_heads, group, num_queries, head_dim).permute(2, 0, 1, 3)


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    """Set logits to -inf in place where their bit is 0.

    `logits` is [V] or [S, V] and `bitmask` int32 [W] or [S, W]: bit i % 32 of word i // 32
    stands for token i. W may be larger than ceil(V / 32), never smaller.
    """
    device = bitmask.device
    # Byte j of the little-endian words holds tokens 8 j .. 8 j + 7: one table row a byte.
    bits = (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
    octets = bitmask.contiguous().view(torch.uint8)
    forbidden = (bits == 0).index_select(0, octets.flatten().int()).view(*octets.shape[:-1], -1)
    logits.masked_fill_(forbidden[..., : logits.shape[-1]], -torch.inf)
