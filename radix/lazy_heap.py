"""A heap whose items may leave it, or move in it, at any time: O(log n) each, amortised.

An entry that no longer stands for its item stays behind as garbage, told by its ticket. Once
garbage outweighs the items the heap is rebuilt without it, which costs no more than the changes
that made it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

_MIN_GARBAGE = 64


class LazyHeap(Generic[Item]):
    """Items by key, the smallest first; among equal keys, the one that was put first."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        self._tickets: dict[Item, int] = {}
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, item: Item) -> bool:
        return item in self._tickets

    def put(self, item: Item, key: Any) -> None:
        """Add an item, or move it. Keys must be comparable with each other."""
        self._tickets[item] = self._next_ticket
        heapq.heappush(self._entries, (key, self._next_ticket, item))
        self._next_ticket += 1
        self._collect_garbage()

    def discard(self, item: Item) -> None:
        """Take an item out, if it is in."""
        if self._tickets.pop(item, None) is not None:
            self._collect_garbage()

    def in_order(self) -> Iterator[tuple[Any, Item]]:
        """Keys and items, the smallest key first, at the cost of those that are looked at.

        The heap must not change before the iterator is done or closed.
        """
        taken: list[tuple[Any, int, Item]] = []
        try:
            while self._entries:
                entry = heapq.heappop(self._entries)
                if self._is_valid(entry):
                    taken.append(entry)
                    yield entry[0], entry[2]
        finally:
            for entry in taken:
                heapq.heappush(self._entries, entry)

    def _is_valid(self, entry: tuple[Any, int, Item]) -> bool:
        return self._tickets.get(entry[2]) == entry[1]

    def _collect_garbage(self) -> None:
        if len(self._entries) > 2 * len(self._tickets) + _MIN_GARBAGE:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)
