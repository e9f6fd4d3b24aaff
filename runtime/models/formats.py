"""Which packed format each matrix of a model gets; knows no bytes.

`--dtype auto` keeps what is stored and is never lossy by surprise; the other choices are asked
for. GGUF's blocks dequantise exactly inside the kernels, so "float32" keeps them as well: the
numbers are those of float32 weights, at a fifth of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from espalier.kernels.packing import Activations, Format, PackedMatrix

from ..config import WeightDtype

Role = Literal["linear", "vocabulary"]  # a layer's projection; the embedding or the head

_BLOCKS: tuple[Format, ...] = ("q4_0", "q4_1", "q8")
_FOUR_BITS: tuple[Format, ...] = ("q4_0", "q4_1")


def packed_format(dtype: WeightDtype, role: Role, stored: Format | None) -> Format:
    """The format for a matrix that is `stored` as such: None stands for all other types."""
    match dtype:
        case "auto" | "float32":
            return "f32" if stored is None else stored
        case "bfloat16":
            return "bf16"
        case "int8":
            return "q8"
        case "q4":
            if stored in _FOUR_BITS:
                return stored
            return "q4_1" if role == "linear" else "q8"


def activations(dtype: WeightDtype, matrices: Sequence[PackedMatrix]) -> Activations:
    """Whether a projection may have its inputs rounded to 8 bits, for those matrices in blocks."""
    exact = dtype in ("float32", "bfloat16")
    return "quantized" if not exact and any(m.format in _BLOCKS for m in matrices) else "float32"
