"""Waiting sequences that follow the tree: what the cache machine rarely meets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.radix.cache import RadixCache
from espalier.radix.types import IntArray
from espalier.radix.watch import PrefixWatch, Watched
from tests.radix.watch_walk import walk


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


def lines_run(work: Callable[[], Any]) -> int:
    """How many lines of the watching modules a piece of work runs, each as often as it runs."""
    num_lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_lines
        if "/watch" not in frame.f_code.co_filename:
            return None
        num_lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return num_lines


def test_one_that_ends_parts_from_those_that_go_on() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([9] * (5 + order))) for order in range(4)]
    fill(cache, [9] * 6)
    assert [w.length for w in watched] == [5, 6, 6, 6]
    for w in watched[:3]:
        watch.remove(w)
    fill(cache, [9] * 8)
    assert watched[3].length == 8


def test_a_thousand_follow_a_node_until_it_tells_them_apart() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(order, (), array([*range(50), 100 + order])) for order in range(1000)]
    fill(cache, range(40))
    assert {w.length for w in watched} == {40}
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
        watch.remove(late)


def test_whoever_falls_back_goes_every_way_again() -> None:
    """They leave each other's way at many points."""
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


def crowd(num: int) -> list[IntArray]:
    """Sequences of a prefix of 50, each of which goes on in its own way."""
    return [array([*range(50), 100 + order, 7]) for order in range(num)]


def came_before(cache: RadixCache, watch: PrefixWatch, num: int) -> None:
    for order, ids in enumerate(crowd(num)):
        watch.add(order, (), ids)
    fill(cache, range(50))


def came_after(cache: RadixCache, watch: PrefixWatch, num: int) -> None:
    fill(cache, range(50))
    for order, ids in enumerate(crowd(num)):
        watch.add(order, (), ids)


def changes(cache: RadixCache, watch: PrefixWatch) -> Iterator[Callable[[], Any]]:
    """A prefix that many wait for is evicted in many ways, and computed again each time."""
    for length in range(2, 50, 7):
        yield cache.flush
        yield partial(fill, cache, range(length))
        yield partial(fill, cache, range(50))
    for _ in range(10):
        yield partial(trim, cache, 5)
    yield partial(fill, cache, [*range(20), 99])
    yield partial(fill, cache, [*range(50), 103, 7])
    yield cache.flush
    yield watch.best
    yield partial(watch.best, {0, 1, 2})


def trim(cache: RadixCache, n: int) -> None:
    slots = cache.alloc(cache.num_free + n)
    assert slots is not None
    cache.release(slots, after_step=None)


@pytest.mark.parametrize("arrive", [came_before, came_after])
def test_no_change_costs_more_the_more_wait(
    arrive: Callable[[RadixCache, PrefixWatch, int], None],
) -> None:
    costs: list[list[int]] = []
    for num in (20, 400):
        cache, watch = watched_cache()
        arrive(cache, watch, num)
        costs.append([lines_run(change) for change in changes(cache, watch)])
        walk(watch, cache.tree)
    few, many = costs
    assert few == many and min(few) > 0


def test_an_arrival_costs_no_more_the_more_wait() -> None:
    costs: list[list[int]] = []
    for num in (3, 400):
        cache, watch = watched_cache()
        came_after(cache, watch, num)
        late = [array([*range(50), 9, order]) for order in range(1000, 1003)]
        costs.append(
            [lines_run(partial(watch.add, order, (), ids)) for order, ids in enumerate(late, 1000)]
        )
    assert costs[0] == costs[1]


def test_sequences_nested_a_thousand_deep_neither_recurse_nor_stay() -> None:
    cache, watch = watched_cache()
    watched = [watch.add(-order, (), array([1] * order)) for order in range(1, 1101)]
    fill(cache, [1] * 700)
    assert watched[1000].length == 700
    assert watch.best({-1100, -1099}) is watched[1097]
    assert walk(watch, cache.tree) == 1101
    for w in watched:
        watch.remove(w)
    assert not watch.roots and not watch.deepest and not watch.ranking


ways = st.lists(st.integers(0, 2), max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(ways, min_size=20, max_size=40))
def test_a_crowd_on_few_ways_knows_how_much_is_held(
    data: st.DataObject, crowded: list[list[int]]
) -> None:
    """Many more wait than the cache machine has, and they come and go all the time."""
    cache, watch = watched_cache()
    here: dict[int, Watched] = {}
    orders = data.draw(st.permutations(range(len(crowded))))
    for step, (order, ids) in enumerate(zip(orders, crowded, strict=True)):
        here[order] = watch.add(order, ("ns",) if step % 5 == 0 else (), array(ids))
        match data.draw(st.sampled_from(["fill", "trim", "flush", "remove", "split"])):
            case "fill":
                fill(cache, data.draw(ways))
            case "trim":
                trim(cache, min(data.draw(st.integers(1, 3)), cache.num_evictable))
            case "flush":
                cache.flush()
            case "remove":
                watch.remove(here.pop(data.draw(st.sampled_from(sorted(here)))))
            case _:
                cache.unlock(cache.lock(cache.match_prefix((), array(data.draw(ways)))))
        walk(watch, cache.tree)
    ranked = sorted(here.values(), key=lambda w: (-w.length, w.order))
    for passed in range(0, len(ranked), 5):
        assert watch.best({w.order for w in ranked[:passed]}) is ranked[passed]
    for w in ranked:
        watch.remove(w)
    assert not watch.roots and not watch.deepest and not watch.ranking


def test_a_cache_that_starts_over_is_watched_by_those_who_come_again() -> None:
    cache, watch = watched_cache()
    came_before(cache, watch, 20)
    cache.reset(cache.last_step)
    assert watch.best() is None and walk(watch, cache.tree) == 0
    came_after(cache, watch, 20)
    best = watch.best()
    assert best is not None and (best.order, best.length) == (0, 50)
    walk(watch, cache.tree)
