"""The radix tree of token ids and the KV slots behind it; knows no torch, model or request.

`RadixCache` is all that a scheduler needs. `check.check` recounts a cache from scratch, and
`picture.picture` draws it.
"""

from __future__ import annotations

from .cache import Handle, RadixCache
from .types import IntArray, Namespace

__all__ = ["Handle", "IntArray", "Namespace", "RadixCache"]
