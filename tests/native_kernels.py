"""The same weights for every kind of kernels; native ones are skipped where they were not built."""

from __future__ import annotations

from typing import Literal

import pytest
from torch import Tensor

from espalier.kernels.native import why_unavailable
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.packed import AnyWeights, pack_weights
from espalier.runtime.models.weights import LlamaWeights

Kernels = Literal["torch", "float32", "bfloat16", "int8", "q4"]  # native but for the first
ALL_KERNELS: tuple[Kernels, ...] = ("torch", "float32", "bfloat16", "int8", "q4")

needs_native = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"the native kernels were not built: {why_unavailable()}"
)
NATIVE = [pytest.param(kernels, marks=needs_native) for kernels in ALL_KERNELS[1:]]
KERNELS = ["torch", NATIVE[0]]  # those that compute the same but for rounding


def held_by(kernels: Kernels, weights: LlamaWeights[Tensor], config: ModelConfig) -> AnyWeights:
    """The weights as these kernels read them."""
    return weights if kernels == "torch" else pack_weights(weights, config, kernels)
