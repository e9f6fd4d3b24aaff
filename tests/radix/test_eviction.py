"""The eviction structure: the right leaf first, in O(log n), with little garbage."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from espalier.radix.cache import RadixCache
from espalier.radix.eviction import (
    LFU,
    LRU,
    EvictableLeaves,
    EvictionPolicy,
    EvictionStrategy,
    PriorityFirst,
    SizeAware,
    strategy_of,
)
from espalier.radix.tree import Node
from espalier.radix.types import IntArray


def run(*ids: int) -> IntArray:
    return np.array(ids, dtype=np.int32)


def leaf(last_access: int) -> Node:
    root = Node(run(), run(), None, 0, namespace=())
    return Node(run(1), run(1), root, 1, last_access=last_access)


class Counted(float):
    """A priority that counts how often it is compared."""

    num_comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.num_comparisons += 1
        return float(self) < float(other)


class CountedLRU:
    def priority(self, node: Node) -> float:
        return Counted(node.last_access)


def test_the_least_recently_used_leaf_comes_first() -> None:
    leaves = EvictableLeaves(LRU())
    nodes = [leaf(last_access) for last_access in (5, 2, 9, 4)]
    for node in nodes:
        leaves.add(node)
    order: list[int] = []
    while len(leaves):
        first = leaves.first()
        order.append(first.last_access)
        leaves.discard(first)
    assert order == [2, 4, 5, 9]


def marked(
    name: int, *, start: int = 0, last_access: int = 1, use_count: int = 1, priority: int = 0
) -> Node:
    """A leaf of 10 tokens from `start`, named by its first id."""
    root = Node(run(), run(), None, 0, namespace=())
    above = Node(run(*range(start)), run(*range(start)), root, start)
    ids = run(*range(name, name + 10))
    node = Node(ids, ids, above, start + 10)
    node.last_access, node.use_count, node.priority = last_access, use_count, priority
    return node


def eviction_order(strategy: EvictionStrategy, nodes: list[Node]) -> list[int]:
    leaves = EvictableLeaves(strategy)
    for node in nodes:
        leaves.add(node)
    order: list[int] = []
    while len(leaves):
        order.append(int(leaves.first().key[0]))
        leaves.discard(leaves.first())
    return order


def test_lfu_goes_by_uses_then_by_age() -> None:
    nodes = [
        marked(0, use_count=3, last_access=1),
        marked(1, use_count=1, last_access=9),
        marked(2, use_count=1, last_access=5),
    ]
    assert eviction_order(LFU(), nodes) == [2, 1, 0]


def test_priority_first_goes_by_priority_then_by_age() -> None:
    nodes = [
        marked(0, priority=2, last_access=1),
        marked(1, priority=0, last_access=9),
        marked(2, priority=-1, last_access=7),
        marked(3, priority=0, last_access=5),
    ]
    assert eviction_order(PriorityFirst(), nodes) == [2, 3, 1, 0]


def test_size_aware_evicts_what_is_cheap_to_recompute() -> None:
    nodes = [marked(0, start=5000), marked(1, start=0), marked(2, start=900)]
    assert eviction_order(SizeAware(), nodes) == [1, 2, 0]


def test_size_aware_halves_a_worth_with_each_half_life() -> None:
    """Twice the uses, or twice the cost, stand for one half-life and no more."""
    strategy = SizeAware(break_even=100.0, half_life=8.0)
    for other in (marked(1, use_count=2), marked(1, start=105)):
        assert eviction_order(strategy, [marked(0, last_access=8), other]) == [0, 1]
        assert eviction_order(strategy, [marked(0, last_access=10), other]) == [1, 0]


def test_each_policy_has_its_strategy() -> None:
    kinds = {"lru": LRU, "lfu": LFU, "size": SizeAware, "priority": PriorityFirst}
    assert set(kinds) == set(get_args(EvictionPolicy))
    for policy in get_args(EvictionPolicy):
        assert type(strategy_of(policy)) is kinds[policy]


def test_a_leaf_that_left_and_came_back_counts_once_by_its_new_age() -> None:
    leaves = EvictableLeaves(LRU())
    old, new = leaf(1), leaf(2)
    leaves.add(old)
    leaves.add(new)
    leaves.discard(old)
    old.last_access = 3
    leaves.add(old)
    assert set(leaves) == {old, new} and len(leaves) == 2
    assert leaves.first() is new
    leaves.discard(new)
    assert leaves.first() is old


def test_discarding_what_was_never_there_changes_nothing() -> None:
    leaves = EvictableLeaves(LRU())
    leaves.discard(leaf(1))
    assert len(leaves) == 0
    with pytest.raises(AssertionError):
        leaves.first()


def test_a_locked_node_or_one_with_children_is_no_evictable_leaf() -> None:
    leaves = EvictableLeaves(LRU())
    locked = leaf(1)
    locked.lock_count = 1
    with pytest.raises(AssertionError):
        leaves.add(locked)


def test_garbage_never_outweighs_the_leaves_by_more_than_a_constant() -> None:
    leaves = EvictableLeaves(LRU())
    node = leaf(0)
    for access in range(1000):
        node.last_access = access
        leaves.add(node)
        leaves.discard(node)
        assert leaves.num_garbage <= 64


def test_a_rebuild_drops_the_old_entries_of_a_leaf_that_is_evictable_again() -> None:
    leaves = EvictableLeaves(LRU())
    kept, churned = leaf(1), leaf(2)
    leaves.add(kept)
    for _ in range(40):
        leaves.discard(kept)
        leaves.add(kept)
    before = leaves.num_garbage
    while leaves.num_garbage >= before:
        before = leaves.num_garbage
        leaves.add(churned)
        leaves.discard(churned)
    assert leaves.num_garbage == 0
    assert list(leaves) == [kept]


def cache_with_leaves(num_leaves: int) -> RadixCache:
    """`num_leaves` unlocked leaves of one token each, all under the root."""
    cache = RadixCache(num_leaves, strategy=CountedLRU())
    for i in range(num_leaves):
        slots = cache.alloc(1)
        assert slots is not None
        root = cache.lock(cache.match_prefix((), run()))
        cache.unlock(cache.insert(root, run(i), slots, after_step=None))
    return cache


@pytest.mark.parametrize("num_leaves", [256, 4096])
def test_evicting_one_token_compares_o_log_n_leaves(num_leaves: int) -> None:
    cache = cache_with_leaves(num_leaves)
    num_evictions = num_leaves // 2
    Counted.num_comparisons = 0
    for _ in range(num_evictions):
        slots = cache.alloc(1)
        assert slots is not None
    per_eviction = Counted.num_comparisons / num_evictions
    assert cache.num_evicted == num_evictions
    assert 1 <= per_eviction <= 3 * math.log2(num_leaves)


def test_locking_and_unlocking_a_hot_leaf_stays_cheap_among_many() -> None:
    cache = cache_with_leaves(1024)
    Counted.num_comparisons = 0
    for _ in range(5000):
        cache.unlock(cache.lock(cache.match_prefix((), run(7))))
    assert Counted.num_comparisons / 5000 <= 3 * math.log2(1024)
    assert cache.leaves.num_garbage <= 1024 + 64
