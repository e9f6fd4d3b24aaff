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


def test_those_who_part_stay_one_group_until_a_node_comes_for_them() -> None:
    """A prefix of a thousand arrives: who goes on moves, nobody else is touched."""
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([*range(50), 100 + order, 7])) for order in range(1000)]
    fill(cache, [*range(50), 100])
    assert {w.order for w in watched if w.group is watched[0].group} == {0}
    assert len({id(w.group) for w in watched[1:]}) == 1
    fill(cache, [*range(50), 500, 7])
    assert watched[400].length == 52 and watch.best() is watched[400]
    assert all(w.length == 50 for w in watched if w.order not in (0, 400))


def test_a_node_takes_all_that_want_it_from_those_who_parted() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([1, 2, order % 3, 5, order])) for order in range(9)]
    fill(cache, [1, 2])
    fill(cache, [1, 2, 0, 5])
    assert [w.length for w in watched] == [4, 2, 2] * 3
    fill(cache, [1, 2, 1, 5, 4])
    assert [w.length for w in watched] == [4, 4, 2, 4, 5, 2, 4, 4, 2]
    fill(cache, [1, 2, 0, 5, 6])
    assert [w.length for w in watched] == [4, 4, 2, 4, 5, 2, 5, 4, 2]


def test_those_who_parted_fall_back_together_and_part_again() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([1, 2, 3, order, 4])) for order in range(5)]
    for _ in range(2):
        fill(cache, [1, 2, 3, 2, 4])
        late = watch.add(5, (), array([1, 2, 3, 5]))
        assert [w.length for w in [*watched, late]] == [3, 3, 5, 3, 3, 3]
        cache.flush()
        assert [w.length for w in [*watched, late]] == [0] * 6
        assert len({id(w.group) for w in [*watched, late]}) == 1
        watch.remove(late)


def test_groups_that_meet_know_how_far_each_of_them_agrees() -> None:
    """Two groups fall back to one spot; the one's members leave the other's way at many points."""
    cache, watch = watched_cache()
    ways = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 7], [1, 2, 6], [1, 8, 9], [1, 8, 9, 9], [1, 2, 3]]
    for first in ways:
        fill(cache, first)
        watched = [watch.add(order, (), array(way)) for order, way in enumerate(ways)]
        cache.flush()
        for second in ways:
            fill(cache, second)
            for w, way in zip(watched, ways, strict=True):
                held = cache.match_prefix((), array(way)).length
                assert w.length == held, (first, second, way)
        for w in watched:
            watch.remove(w)
        cache.flush()
