"""Records a forward pass as a list of operations on buffers; executes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .ops import Heads, Norm
from .packing import PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Activations: a float32 matrix of `width` columns and one row for each token of a step,
    or, after `Recorder.select`, for each selected one."""

    width: int
    selected: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    weight: PackedLinear
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    x: Buffer
    weight: PackedLinear
    out: Buffer
    norm: Norm | None
    bias: Tensor | None
    residual: Buffer | None
    swiglu: bool


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    qkv: Buffer
    out: Buffer
    layer: int


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    x: Buffer
    out: Buffer


Recorded = Embed | Linear | Attention | Select


class Recorder:
    """`ops.Ops` on buffers and packed weights."""

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.ops: list[Recorded] = []

    def embed(self, weight_VD: PackedLinear) -> Buffer:
        out = Buffer(weight_VD.num_inputs)
        self.ops.append(Embed(weight_VD, out))
        return out

    def linear(
        self,
        x_TD: Buffer,
        weight_ED: PackedLinear,
        *,
        norm: Norm | None = None,
        bias_E: Tensor | None = None,
        residual_TE: Buffer | None = None,
    ) -> Buffer:
        out = Buffer(weight_ED.num_outputs, x_TD.selected)
        self.ops.append(Linear(x_TD, weight_ED, out, norm, bias_E, residual_TE, swiglu=False))
        return out

    def swiglu(self, x_TD: Buffer, gate_up_GD: PackedLinear, *, norm: Norm | None = None) -> Buffer:
        gate, _ = gate_up_GD.matrices
        out = Buffer(gate.num_outputs, x_TD.selected)
        self.ops.append(Linear(x_TD, gate_up_GD, out, norm, None, None, swiglu=True))
        return out

    def attention(self, qkv_TE: Buffer, layer: int) -> Buffer:
        out = Buffer(self.heads.num_heads * self.heads.head_dim)
        self.ops.append(Attention(qkv_TE, out, layer))
        return out

    def select(self, x_TD: Buffer) -> Buffer:
        """The rows of the step's selected tokens. What follows is the read-out."""
        out = Buffer(x_TD.width, selected=True)
        self.ops.append(Select(x_TD, out))
        return out


def reads(op: Recorded) -> list[Buffer]:
    """The buffers that an operation reads."""
    match op:
        case Embed():
            return []
        case Linear(x=x, residual=residual):
            return [x] if residual is None else [x, residual]
        case Attention(qkv=qkv):
            return [qkv]
        case Select(x=x):
            return [x]
