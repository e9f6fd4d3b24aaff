"""The usual design of a radix cache, as a contender: Python all the way, pages of one token.

Children by their first token, keys compared token by token, and a heap over all leaves built
by each call that evicts. It is what bench/radix.py measures against, and no more than that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from espalier.radix.types import IntArray


@dataclass(eq=False, slots=True)
class _Node:
    key: list[int]
    value: IntArray
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])
    lock_count: int = 0
    last_access: int = 0

    def __lt__(self, other: _Node) -> bool:
        return self.last_access < other.last_access


class UsualCache:
    """A least recently used radix cache. Takes token ids as lists, gives and takes slots."""

    def __init__(self) -> None:
        self._root = _Node([], np.empty(0, np.int32), None)
        self._clock = 0
        self.freed: list[IntArray] = []

    def match(self, ids: list[int]) -> tuple[int, _Node]:
        """How much of `ids` is cached, and the node where that ends (split if need be)."""
        self._clock += 1
        node, taken = self._root, 0
        while taken < len(ids) and (child := node.children.get(ids[taken])) is not None:
            child.last_access = self._clock
            common = _common_len(child.key, ids, taken)
            taken += common
            if common < len(child.key):
                return taken, _split(child, common)
            node = child
        return taken, node

    def insert(self, ids: list[int], slots: IntArray) -> tuple[int, _Node]:
        """Cache `slots` for `ids`; how much of them was there before, and the new end."""
        known, node = self.match(ids)
        if known == len(ids):
            return known, node
        leaf = _Node(ids[known:], slots[known:].copy(), node, last_access=self._clock)
        node.children[ids[known]] = leaf
        return known, leaf

    def lock(self, node: _Node) -> None:
        for at in self._path(node):
            at.lock_count += 1

    def unlock(self, node: _Node) -> None:
        for at in self._path(node):
            at.lock_count -= 1

    def evict(self, num_tokens: int) -> None:
        """Evict whole leaves until that many tokens have gone."""
        heap = self._evictable_leaves()
        heapq.heapify(heap)
        while num_tokens > 0 and heap:
            leaf = heapq.heappop(heap)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[0]]
            self.freed.append(leaf.value)
            num_tokens -= len(leaf.value)
            if parent is not self._root and not parent.children and not parent.lock_count:
                heapq.heappush(heap, parent)

    def _evictable_leaves(self) -> list[_Node]:
        leaves: list[_Node] = []
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            elif not node.lock_count:
                leaves.append(node)
        return leaves

    def _path(self, node: _Node) -> Iterator[_Node]:
        while node.parent is not None:
            yield node
            node = node.parent


def _common_len(key: list[int], ids: list[int], start: int) -> int:
    common = 0
    for mine, other in zip(key, ids[start : start + len(key)], strict=False):
        if mine != other:
            break
        common += 1
    return common


def _split(node: _Node, length: int) -> _Node:
    parent = node.parent
    assert parent is not None
    upper = _Node(node.key[:length], node.value[:length].copy(), parent)
    upper.lock_count, upper.last_access = node.lock_count, node.last_access
    parent.children[upper.key[0]] = upper
    node.key, node.value, node.parent = node.key[length:], node.value[length:].copy(), upper
    upper.children[node.key[0]] = node
    return upper
