"""What a forward pass is written in, as one protocol; knows no implementation of it.

A model's code runs as it stands on tensors (`torch_ops`), or is recorded once as a plan that
one native call executes for each step (`recorder`). The step, the tables and the KV pool
belong to the implementation: the model never sees them.

Shape suffixes, here and in every implementation: T tokens of the step, D width of the
hidden state, E width of a projection, H query heads, K key/value heads, d width of one head,
S slots of the KV pool, R rows and P positions of the slot table, F width of the MLP,
E = (H + 2 K) d where it is that of queries, keys and values together, G = 2 F, V vocabulary,
N selected tokens, W = ceil(V / 32) words of a bitmask.

A slot holds the key and the value of one token in one layer. The slot table says where each
request keeps its tokens: `slot_table_RP[r, p]` is the slot of position p of table row r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

X = TypeVar("X")  # activations
W_contra = TypeVar("W_contra", contravariant=True)  # a weight matrix


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of attention: query head h reads key/value head h // (H / K)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32."""

    weight_D: Tensor
    eps: float


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


class Ops(Protocol[X, W_contra]):
    """Operations of a forward pass over the tokens of one step. Inputs are never changed."""

    def embed(self, weight_VD: W_contra) -> X:
        """The embeddings x_TD of the step's tokens."""
        ...

    def linear(
        self,
        x_TD: X,
        weight_ED: W_contra,
        *,
        norm: Norm | None = None,
        bias_E: Tensor | None = None,
        residual_TE: X | None = None,
    ) -> X:
        """y_TE: every row of x, normalised first where `norm` is given, times the transposed
        weight, plus bias and residual where they are given."""
        ...

    def swiglu(self, x_TD: X, gate_up_GD: W_contra, *, norm: Norm | None = None) -> X:
        """silu(gate) * up: x_TF, of the first and the second half of `linear`'s outputs."""
        ...

    def attention(self, qkv_TE: X, layer: int) -> X:
        """Causal attention of the step's tokens to their rows: o_TE of H d channels.

        Rows of `qkv_TE` hold the queries, then the keys, then the values. Queries and keys are
        rotated by their positions (channel i of a head with i + d / 2, Hugging Face's layout);
        the keys and values of all rows are put into their slots before any row attends. Keys
        and values are read from the pool only.
        """
        ...
