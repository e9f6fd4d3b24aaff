"""Leases by the clock: how long, how much, and who goes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.check import check
from espalier.radix.leases import Leases
from espalier.radix.types import IntArray
from tests.fakes import ManualClock


def array(ids: Sequence[int]) -> IntArray:
    return np.array(ids, np.int32)


def locked(cache: RadixCache, ids: Sequence[int]) -> Handle:
    """A lock on `ids`, which are in the cache from now on."""
    handle = cache.lock(cache.match_prefix((), array(ids)))
    rest = array(ids)[handle.length :]
    slots = cache.alloc(len(rest))
    assert slots is not None
    return cache.insert(handle, rest, slots, after_step=None)


def lease(cache: RadixCache, leases: Leases, ids: Sequence[int], duration_s: float) -> bool:
    handle = locked(cache, ids)
    granted = leases.take(handle, duration_s)
    cache.unlock(handle)
    check(cache, (), leases)
    return granted


def holds(cache: RadixCache, ids: Sequence[int]) -> bool:
    return cache.match_prefix((), array(ids)).length == len(ids)


def small(num_slots: int = 16, max_tokens: int = 8) -> tuple[RadixCache, Leases, ManualClock]:
    clock = ManualClock()
    cache = RadixCache(num_slots)
    return cache, Leases(cache, max_tokens=max_tokens, now=clock), clock


def test_a_leased_path_outlives_others_until_its_time_has_come() -> None:
    cache, leases, clock = small()
    assert lease(cache, leases, [1, 2, 3], 10.0)
    for salt in range(8):
        cache.unlock(locked(cache, [9, salt, *range(5)]))
    assert holds(cache, [1, 2, 3]) and cache.num_leased == 3
    clock.now += 9.5
    leases.expire()
    assert cache.num_leased == 3 and leases.next_expiry_s == 0.5
    clock.now += 0.5
    leases.expire()
    assert cache.num_leased == 0 and leases.next_expiry_s is None
    assert cache.num_evictable == cache.num_cached


def test_what_two_leases_share_counts_once() -> None:
    cache, leases, _ = small()
    assert lease(cache, leases, [1, 2, 3, 4], 10.0)
    assert lease(cache, leases, [1, 2, 5, 6], 10.0)
    assert cache.num_leased == 6


def test_the_same_path_is_kept_for_the_longer_time() -> None:
    cache, leases, clock = small()
    for duration_s in (5.0, 10.0, 1.0):
        assert lease(cache, leases, [1, 2], duration_s)
    assert len(leases) == 1
    clock.now += 9
    leases.expire()
    assert cache.num_leased == 2
    clock.now += 1
    leases.expire()
    assert cache.num_leased == 0


def test_those_that_expire_first_yield_to_a_new_one() -> None:
    cache, leases, _ = small()
    assert lease(cache, leases, [1, 1, 1], 30.0)
    assert lease(cache, leases, [2, 2, 2], 20.0)
    assert lease(cache, leases, [3, 3, 3, 3], 10.0)
    assert {int(node.key[0]) for node in leases} == {1, 3}


def test_one_that_is_too_long_or_empty_is_not_granted_and_harms_none() -> None:
    cache, leases, _ = small()
    assert lease(cache, leases, [1, 1], 30.0)
    assert not lease(cache, leases, [2] * 9, 30.0)
    assert not lease(cache, leases, [], 30.0)
    assert cache.num_leased == 2 and len(leases) == 1


def test_leases_yield_as_far_as_needed_and_only_where_it_helps() -> None:
    cache, leases, _ = small(num_slots=10)
    assert lease(cache, leases, [1, 1], 30.0)
    assert lease(cache, leases, [2, 2], 20.0)
    assert lease(cache, leases, [3, 3], 10.0)
    leases.make_room(5)
    assert cache.num_available == 6 and cache.num_leased == 4
    held = locked(cache, [1, 1])
    leases.make_room(10)
    assert cache.num_available == 8 and {int(node.key[0]) for node in leases} == {1}
    cache.unlock(held)
    leases.make_room(10)
    assert cache.num_available == 10 and len(leases) == 0


def test_a_withdrawn_end_leaves_the_sound_part_leased() -> None:
    cache, leases, _ = small()
    assert lease(cache, leases, [1, 2], 5.0)
    assert lease(cache, leases, [1, 2, 3, 4], 10.0)
    assert lease(cache, leases, [7, 7], 10.0)
    for doomed_id, left in ((3, 4), (7, 2)):
        node = next(node for node in leases if node.key[0] == doomed_id)
        leases.roll_back({node}.__contains__)
        assert cache.withdraw({node}.__contains__) == 2
        assert cache.num_leased == left
        check(cache, (), leases)
    assert leases.next_expiry_s == 10.0, "the longer lease lost its time with its end"
