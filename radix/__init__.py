"""The radix tree of cached tokens and the KV slot memory behind it; knows no torch, no models.

from espalier.radix import Handle, RadixCache
from espalier.radix.check import check
from espalier.radix.picture import picture
"""

from __future__ import annotations

from .cache import Handle, RadixCache
from .types import IntArray, Namespace

__all__ = ["Handle", "IntArray", "Namespace", "RadixCache"]
