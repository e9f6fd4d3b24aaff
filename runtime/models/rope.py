"""Rotary position tables (RoFormer, arXiv 2104.09864), with Llama 3.1's long-context scaling.

Computed in float32 step by step as transformers does, so that both round alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import FrequencyDivisors, Llama3Scaling, RopeConfig


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos_Pd and sin_Pd; both halves of each row are equal (half-rotation layout)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = _scaled(1.0 / (rope.theta**exponents), rope.scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inv_freq)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _scaled(inv_freq: Tensor, scaling: Llama3Scaling | FrequencyDivisors | None) -> Tensor:
    match scaling:
        case None:
            return inv_freq
        case FrequencyDivisors(divisors):
            return inv_freq / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(inv_freq, scaling)


def _llama3(inv_freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow the low frequencies by `factor`, leave the high ones, blend in between."""
    wavelength = 2 * math.pi / inv_freq
    turns = scaling.original_max_position / wavelength  # within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * inv_freq / scaling.factor + blend * inv_freq
