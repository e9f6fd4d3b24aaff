"""Counter-based noise for sampling: a value depends on its key and nothing else.

The key is (seed, choice, position, token id), so a token's noise is the same whichever
other tokens or rows are drawn with it. There is no state.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 2**64 - 1
# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def gumbel_noise(seed: int, choice: int, position: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, one value for each of `token_ids` (int64)."""
    key = 0
    for word in (seed, choice, position):
        key = _mix(((key + _GAMMA) ^ word) & _MASK)
    bits = token_ids * _signed(_GAMMA) + _signed(key)
    _mix_tensor_(bits)
    # The upper 52 bits, each value centred in its cell: exact in float64, never 0 or 1.
    uniform = _shift_right(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


def _mix(word: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every bit counts."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        word = (word ^ (word >> shift)) * multiplier & _MASK
    return word ^ (word >> _SHIFTS[2])


def _mix_tensor_(words: Tensor) -> None:
    """`_mix` in place on int64, whose products wrap like those of unsigned words."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        words.bitwise_xor_(_shift_right(words, shift)).mul_(_signed(multiplier))
    words.bitwise_xor_(_shift_right(words, _SHIFTS[2]))


def _shift_right(words: Tensor, shift: int) -> Tensor:
    """Logical shift: int64's own keeps the sign."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _signed(word: int) -> int:
    """The int64 with the same bits."""
    return word - 2**64 if word >= 2**63 else word
