"""The two value types that every module of the radix cache speaks of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
"""A run of token ids or of KV slots, one number a token."""

Namespace = tuple[str, ...]
"""What must match beside the ids (tenant salt, adapter); compared by value, part by part."""
