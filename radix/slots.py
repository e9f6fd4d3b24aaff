"""Which KV slot is in which state; knows nothing of tokens or of the tree.

A slot is a place for one token's KV. It goes round through four states:

    FREE ──alloc──▶ IN_USE ──▶ CACHED
      ▲                │          │
      │                ▼          ▼
      └──────────── PENDING  (or straight to FREE)

radix/csrc/slots.h keeps the same ledger; core.py says which of the two runs.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from .types import IntArray


class SlotState(IntEnum):
    """Who holds a slot."""

    FREE = 0
    IN_USE = 1  # a caller, privately
    CACHED = 2  # the tree
    PENDING = 3  # nobody, but a step in flight may still touch it


class SlotPool:
    """A ledger of `num_slots` slots, each in exactly one state.

    Free slots lie in `_ready[_taken:]`, ascending, and in `_returned`, unsorted. A refill
    sorts both together, so that low runs go out first and a fresh prompt tends to get one
    contiguous range; its cost is spread over the slots that it makes ready.
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 0, num_slots
        self.num_slots = num_slots
        self._state = np.zeros(num_slots, dtype=np.int8)
        self._mark = np.zeros(num_slots, dtype=np.int32)
        self._counts = [num_slots, 0, 0, 0]
        self._ready: IntArray = np.arange(num_slots, dtype=np.int32)
        self._taken = 0
        self._returned: list[IntArray] = []

    def count(self, state: SlotState) -> int:
        """Slots in `state`; the four counts always add up to `num_slots`."""
        return self._counts[state]

    def members(self, state: SlotState) -> IntArray:
        """Every slot in `state`, ascending. Scans the ledger: for checks only."""
        return np.flatnonzero(self._state == state).astype(np.int32)

    def supply(self) -> IntArray:
        """What `alloc` can hand out, unsorted; the same set as the members of FREE."""
        return np.concatenate([self._ready[self._taken :], *self._returned])

    def alloc(self, n: int) -> IntArray:
        """Take `n` free slots into use, ascending and contiguous where that costs nothing."""
        assert 0 <= n <= self.count(SlotState.FREE), (n, self._counts)
        if n > len(self._ready) - self._taken:
            self._refill()
        slots = self._ready[self._taken : self._taken + n].copy()
        self._taken += n
        self._enter(slots, SlotState.FREE, SlotState.IN_USE)
        return slots

    def free(self, slots: IntArray, source: SlotState = SlotState.IN_USE) -> None:
        """Give back slots that are in the state `source`."""
        self.move(slots, source, SlotState.FREE)

    def move(self, slots: IntArray, source: SlotState, target: SlotState) -> None:
        """Carry slots from one state to another; a slot elsewhere, or named twice, is a bug."""
        assert source is not SlotState.FREE, "free slots leave through alloc only"
        self._enter(slots, source, target)
        if target is SlotState.FREE and len(slots):
            self._returned.append(slots.copy())

    def _enter(self, slots: IntArray, source: SlotState, target: SlotState) -> None:
        n = len(slots)
        if n == 0:
            return
        where: slice | IntArray | None = _window(slots)
        if where is None:
            order = np.arange(n, dtype=np.int32)
            self._mark[slots] = order
            assert (self._mark[slots] == order).all(), f"a slot comes twice in {slots}"
            where = slots
        astray = self._state[where] != int(source)  # a plain int: numpy is slow on enums
        assert not np.count_nonzero(astray), f"slots {slots[astray]} are not {source.name}"
        self._state[where] = int(target)
        self._counts[source] -= n
        self._counts[target] += n

    def _refill(self) -> None:
        self._ready = np.sort(self.supply())
        self._taken = 0
        self._returned.clear()


def _window(slots: IntArray) -> slice | None:
    """The range that ascending, contiguous slots make up, as most are: far faster to index by."""
    first, n = int(slots[0]), len(slots)
    if int(slots[-1]) - first != n - 1:
        return None
    run = np.arange(first, first + n, dtype=np.int32)
    return slice(first, first + n) if run.tobytes() == slots.tobytes() else None
