"""Waiting sequences that follow the tree: what the cache machine rarely meets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from espalier.radix.cache import RadixCache
from espalier.radix.types import IntArray
from espalier.radix.watch import PrefixWatch


def array(ids: Sequence[int]) -> IntArray:
    return np.array(ids, np.int32)


def watched_cache() -> tuple[RadixCache, PrefixWatch]:
    cache = RadixCache(1000)
    watch = PrefixWatch(cache.tree)
    cache.observe(watch)
    return cache, watch


def fill(cache: RadixCache, ids: Sequence[int]) -> None:
    handle = cache.lock(cache.match_prefix((), array(())))
    slots = cache.alloc(len(ids))
    assert slots is not None
    cache.unlock(cache.insert(handle, array(ids), slots, after_step=None))


def test_one_that_ends_parts_from_those_that_go_on() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([9] * (5 + order))) for order in range(4)]
    fill(cache, [9] * 6)
    assert [w.length for w in watched] == [5, 6, 6, 6]
    for w in watched[:3]:
        watch.remove(w)
    fill(cache, [9] * 8)
    assert watched[3].length == 8


def test_a_group_moves_at_the_cost_of_one() -> None:
    """A thousand that begin alike follow a node by one comparison, until it tells them apart."""
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([*range(50), 100 + order])) for order in range(1000)]
    fill(cache, range(40))
    assert len({id(w.group) for w in watched}) == 1 and watched[999].length == 40
    fill(cache, [*range(50), 107])
    assert [w.order for w in watched if w.length == 51] == [7]
    assert all(w.length == 50 for w in watched if w.order != 7)
    best = watch.best()
    assert best is watched[7]
    assert watch.best({7}) is watched[0]


def test_a_sequence_that_comes_later_but_is_older_goes_first() -> None:
    cache, watch = watched_cache()
    fill(cache, [1, 2])
    for order in (5, 3, 8):
        watch.add(order, (), array([1, 2, 3]))
    found: list[int] = []
    while best := watch.best(found):
        found.append(best.order)
    assert found == [3, 5, 8]
