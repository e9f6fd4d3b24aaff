"""Tensors as Python lists, typed: torch declares `Tensor.tolist` without a return type."""

from __future__ import annotations

from torch import Tensor


def floats_of(values_N: Tensor) -> list[float]:
    """The values of a 1-D float tensor."""
    assert values_N.dim() == 1 and values_N.is_floating_point(), (values_N.shape, values_N.dtype)
    return values_N.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def ints_of(values_N: Tensor) -> list[int]:
    """The values of a 1-D integer tensor."""
    assert values_N.dim() == 1 and not values_N.is_floating_point(), values_N.shape
    return values_N.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
