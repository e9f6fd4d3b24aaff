"""Which unlocked leaf goes first, found in O(log n); knows nothing of slots.

A lazy heap: a leaf that is locked, or gone, leaves its entry behind as garbage, told by a
ticket that is no longer the node's. Once garbage outweighs the leaves the heap is rebuilt
without it, which costs no more than the discards that made it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import log2
from typing import Any, Literal, Protocol

from .tree import Node

_MIN_GARBAGE = 64


EvictionPolicy = Literal["lru", "lfu", "size", "priority"]
Rank = float | tuple[float, ...]


class EvictionStrategy(Protocol):
    """Ranks leaves for eviction."""

    def priority(self, node: Node) -> Rank:
        """The smallest is evicted first. Asked once, when the node becomes an evictable leaf."""
        ...


class LRU:
    """The least recently used leaf goes first."""

    def priority(self, node: Node) -> Rank:
        return node.last_access


class LFU:
    """The leaf that the fewest requests have used goes first, of equals the oldest."""

    def priority(self, node: Node) -> Rank:
        return node.use_count, node.last_access


class SizeAware:
    """The leaf whose memory saves the least computation goes first.

    A slot of it saves its token's cost for every use. A token costs 1 + position / `break_even`:
    at that position attention costs as much as all else, about 6 times the model's width. What
    that saves is expected to halve with every `half_life` unlocks of the cache that pass it by
    (the GreedyDual family's aging, Young 1994, in closed form). All leaves fade alike, so two of
    them never change places, and the logarithm ranks them for good:

        log2(saving) - (now - last_access) / half_life,    here times half_life, without now
    """

    def __init__(self, *, break_even: float = 4096.0, half_life: float = 256.0) -> None:
        assert break_even > 0 and half_life > 0, (break_even, half_life)
        self._break_even = break_even
        self._half_life = half_life

    def priority(self, node: Node) -> Rank:
        token_cost = 1.0 + (node.start + node.end) / 2 / self._break_even
        saving = max(node.use_count, 1) * token_cost
        return node.last_access + self._half_life * log2(saving)


class PriorityFirst:
    """The leaf that only requests of low priority have used goes first, of equals the oldest."""

    def priority(self, node: Node) -> Rank:
        return node.priority, node.last_access


def strategy_of(policy: EvictionPolicy) -> EvictionStrategy:
    """The strategy of that name, as it is by default."""
    match policy:
        case "lru":
            return LRU()
        case "lfu":
            return LFU()
        case "size":
            return SizeAware()
        case "priority":
            return PriorityFirst()


class EvictableLeaves:
    """The leaves that may be evicted now, ordered by a strategy."""

    def __init__(self, strategy: EvictionStrategy) -> None:
        self._strategy = strategy
        self._heap: list[tuple[Any, int, Node]] = []
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
