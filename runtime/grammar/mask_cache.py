"""What engines allow at places in grammars that requests have been at before; knows no engine.

Requests of one schema are at the same places again and again: all but the first are spared the
engine's way to the mask, which is long where a forward has just emptied the caches.
"""

from __future__ import annotations

from collections import deque
from weakref import ref

from .closing import Ending
from .token_masks import Bitmask

MAX_MASKS = 4096
"""Of all grammars together; 6 kB each for a vocabulary of 49,152."""


class MaskCache:
    """Remembers the newest; for one thread. A grammar that is dropped takes its masks along."""

    def __init__(self, max_masks: int = MAX_MASKS) -> None:
        self._max_masks = max_masks
        self._newest: deque[ref[Ending]] = deque()

    def put(self, place: Ending, mask: Bitmask) -> None:
        """Not to be written to any more."""
        if place.mask is None:
            self._newest.append(ref(place))
        place.mask = mask
        while len(self._newest) > self._max_masks:
            oldest = self._newest.popleft()()
            if oldest is not None:
                oldest.mask = None
