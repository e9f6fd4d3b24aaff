"""What a model needs of its kernels, as one protocol; knows no implementation of it.

Shape suffixes, here and in every implementation: T tokens of the step, D width of the
hidden state, E width of a projection, H query heads, K key/value heads, d width of one head,
S slots of the KV pool, R rows and P positions of the slot table, F width of the MLP,
G = 2 * F, V vocabulary, W = ceil(V / 32) words of a bitmask.

A slot holds the key and the value of one token in one layer. The slot table says where each
request keeps its tokens: `slot_table_RP[r, p]` is the slot of position p of table row r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of one step, in the order in which their new tokens lie in T.

    Row i computes positions `starts[i] .. starts[i] + lengths[i] - 1` (lengths are at least
    1, and add up to T) and reads `slots[i]`, those of all its positions: a slice where they
    are one ascending run, else int64 indices. Found once a step, used in every layer.
    """

    starts: Sequence[int]
    lengths: Sequence[int]
    slots: Sequence[slice | Tensor]

    @classmethod
    def of(
        cls,
        slot_table_RP: Tensor,
        table_rows: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> AttentionRows:
        """The rows `table_rows` of the slot table (int64)."""
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        slots = [
            _run_or_indices(slot_table_RP[row, :end])
            for row, end in zip(table_rows, ends, strict=True)
        ]
        return cls(starts, lengths, slots)


def _run_or_indices(slots_P: Tensor) -> slice | Tensor:
    first, last = int(slots_P[0]), int(slots_P[-1])
    is_run = last - first == len(slots_P) - 1 and bool((slots_P.diff() == 1).all())
    return slice(first, last + 1) if is_run else slots_P.clone()


class Ops(Protocol):
    """Operations of a forward pass. Inputs are never changed, except by `write_kv`."""

    def embed(self, ids_T: Tensor, weight_VD: Tensor) -> Tensor:
        """Rows of the embedding table: x_TD. `ids_T` is int64 or int32."""
        ...

    def linear(self, x_TD: Tensor, weight_ED: Tensor) -> Tensor:
        """y_TE: every row of x times the transposed weight."""
        ...

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32."""
        ...

    def apply_rope(self, x_THd: Tensor, cos_Td: Tensor, sin_Td: Tensor) -> Tensor:
        """Rotate each head by the tables' rows, pairing channel i with i + d / 2.

        This is Hugging Face's layout: both halves of a row of `cos_Td` and `sin_Td` are
        equal. H may be the number of query or of key heads.
        """
        ...

    def write_kv(
        self,
        k_pool_SKd: Tensor,
        v_pool_SKd: Tensor,
        slots_T: Tensor,
        k_TKd: Tensor,
        v_TKd: Tensor,
    ) -> None:
        """Put the step's keys and values into their slots (int64, all different), in place."""
        ...

    def paged_extend_attention(
        self,
        q_THd: Tensor,
        k_pool_SKd: Tensor,
        v_pool_SKd: Tensor,
        rows: AttentionRows,
        scale: float,
    ) -> Tensor:
        """Causal attention of each row's new tokens to the row's own slots: o_THd.

        The token of row i at position p attends to the first p + 1 of `rows.slots[i]`; keys
        and values come from the pool only, so `write_kv` of the step goes first. Query head
        h reads key/value head h // (H / K). Softmax is in float32.
        """
        ...

    def silu_mul(self, gate_up_TG: Tensor) -> Tensor:
        """silu(gate) * up: x_TF, where gate is the first half of each row and up the second."""
        ...
