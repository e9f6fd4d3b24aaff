"""Which unlocked leaf goes first, found in O(log n); knows nothing of slots.

A lazy heap: a leaf that is locked, or gone, leaves its entry behind as garbage, told by a
ticket that is no longer the node's. Once garbage outweighs the leaves the heap is rebuilt
without it, which costs no more than the discards that made it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from .tree import Node

_MIN_GARBAGE = 64


class EvictionStrategy(Protocol):
    """Ranks leaves for eviction."""

    def priority(self, node: Node) -> float:
        """The smallest is evicted first. Asked once, when the node becomes an evictable leaf."""
        ...


class LRU:
    """The least recently used leaf goes first."""

    def priority(self, node: Node) -> float:
        return node.last_access


class EvictableLeaves:
    """The leaves that may be evicted now, ordered by a strategy."""

    def __init__(self, strategy: EvictionStrategy) -> None:
        self._strategy = strategy
        self._heap: list[tuple[float, int, Node]] = []
        self._next_ticket = 0
        self._num_leaves = 0

    def __len__(self) -> int:
        return self._num_leaves

    def __iter__(self) -> Iterator[Node]:
        return (node for _, ticket, node in self._heap if node.ticket == ticket)

    @property
    def num_garbage(self) -> int:
        """Entries that no longer stand for a leaf."""
        return len(self._heap) - self._num_leaves

    def add(self, leaf: Node) -> None:
        """A leaf has become evictable."""
        assert leaf.ticket is None and not leaf.children and not leaf.lock_count, leaf
        leaf.ticket = self._next_ticket
        self._next_ticket += 1
        self._num_leaves += 1
        heapq.heappush(self._heap, (self._strategy.priority(leaf), leaf.ticket, leaf))

    def discard(self, node: Node) -> None:
        """A node is locked or leaves the tree: it is not evictable, if it ever was."""
        if node.ticket is None:
            return
        node.ticket = None
        self._num_leaves -= 1
        if self.num_garbage > self._num_leaves + _MIN_GARBAGE:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def first(self) -> Node:
        """The leaf to evict next; it stays until it is discarded."""
        assert self._num_leaves, "no leaf is evictable"
        while True:
            _, ticket, node = self._heap[0]
            if node.ticket == ticket:
                return node
            heapq.heappop(self._heap)
