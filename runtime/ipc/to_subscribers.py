"""Scheduler process to whoever follows its cache: what the radix tree holds, as it changes.

    run 3   start 0   [5 6 7 8 9]           parent None: it hangs below its namespace's root
    run 4   start 4           [1 2]         parent 3: spells 5 6 7 8 1 2

A run is a stretch of token ids that came into the tree at once. It hangs at a point of its
parent, `start` tokens from the root, and only ever loses its end.
"""

from __future__ import annotations

import msgspec

from ..messages import TokenIds
from .wire import Wire


class Stored(msgspec.Struct, frozen=True, tag=True):
    """A new run: the tree holds, or computes now, the first `start` ids that `parent` spells
    followed by `ids`. `namespace` is set if and only if `parent` is None."""

    run: int
    parent: int | None
    start: int
    ids: TokenIds
    namespace: tuple[str, ...] | None = None


class Removed(msgspec.Struct, frozen=True, tag=True):
    """A run has lost [start, end), in tokens from the root: the end of what was left of it, or
    all that was."""

    run: int
    start: int
    end: int


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """Forget every run. Always the first of its batch, in which all that there is follows."""


Event = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True, tag=True):
    """The events of a step, numbered `first_sequence` and on; numbers have no gaps within one
    `epoch`, which is the life of one scheduler process."""

    epoch: int
    first_sequence: int
    events: tuple[Event, ...]


WIRE: Wire[EventBatch] = Wire(EventBatch)
