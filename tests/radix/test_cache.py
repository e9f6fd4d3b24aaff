"""The radix cache, rule by rule; `test_cache_machine.py` plays them against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.check import check
from espalier.radix.eviction import LFU
from espalier.radix.picture import picture
from espalier.radix.tree import Node
from espalier.radix.types import IntArray, Namespace


def run(*ids: int) -> IntArray:
    return np.array(ids, dtype=np.int32)


def take(cache: RadixCache, n: int) -> IntArray:
    slots = cache.alloc(n)
    assert slots is not None
    return slots


def match(cache: RadixCache, *ids: int, namespace: Namespace = ()) -> Handle:
    return cache.match_prefix(namespace, run(*ids))


def put(cache: RadixCache, *ids: int, namespace: Namespace = ()) -> Handle:
    """Cache settled tokens as a request does at its end; the handle is still locked."""
    handle = cache.lock(match(cache, *ids, namespace=namespace))
    rest = run(*ids[handle.length :])
    return cache.insert(handle, rest, take(cache, len(rest)), after_step=None)


def promise(cache: RadixCache, *ids: int, step: int) -> Handle:
    """Promise what the tree does not hold of `ids`; the handle is locked."""
    handle = cache.lock(match(cache, *ids))
    rest = run(*ids[handle.length :])
    return cache.promise(handle, rest, take(cache, len(rest)), step=step)


def only(doomed: Node) -> Callable[[Node], bool]:
    return lambda node: node is doomed


def unsettled(node: Node) -> bool:
    return node.step is not None


def test_what_was_inserted_is_matched_with_its_slots() -> None:
    cache = RadixCache(10)
    slots = take(cache, 4)
    handle = cache.lock(match(cache, 1, 2, 3, 4))
    handle = cache.insert(handle, run(1, 2, 3, 4), slots, after_step=None)
    found = match(cache, 1, 2, 3, 9)
    assert found.length == 3
    assert cache.slots_of(found).tolist() == slots[:3].tolist()
    assert cache.slots_of(handle, 2).tolist() == slots[2:].tolist()
    assert cache.slots_of(handle, 4).tolist() == []
    assert cache.slots_of(handle).dtype == np.int32
    check(cache)


def test_a_match_ends_at_max_len() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2, 3)
    assert cache.match_prefix((), run(1, 2, 3), 2).length == 2
    assert cache.match_prefix((), run(1, 2, 3), 0).length == 0


def test_matching_reads_only() -> None:
    cache = RadixCache(10)
    cache.unlock(put(cache, 1, 2, 3, 4))
    before = picture(cache)
    inside = match(cache, 1, 2, 9)
    deeper = cache.extend_match(inside, run(3, 4, 5))
    match(cache, 1, 2, namespace=("unknown",))
    assert (inside.length, deeper.length) == (2, 4)
    assert picture(cache) == before
    assert cache.num_evictable == 4


def test_a_handle_can_be_extended_after_its_node_was_split() -> None:
    cache = RadixCache(10)
    whole = put(cache, 1, 2, 3, 4)
    inside = match(cache, 1, 2, 3)
    cache.lock(match(cache, 1, 2))
    assert cache.extend_match(inside, run(4)) == whole
    assert cache.slots_of(inside).tolist() == cache.slots_of(whole)[:3].tolist()
    check(cache)


def test_namespaces_are_compared_part_by_part() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2, 3, namespace=("ab", "c"))
    assert match(cache, 1, 2, 3, namespace=("a", "bc")).length == 0
    assert match(cache, 1, 2, 3, namespace=("abc",)).length == 0
    assert match(cache, 1, 2, 3).length == 0
    assert match(cache, 1, 2, 3, namespace=("ab", "c")).length == 3


def test_an_idle_namespace_is_dropped() -> None:
    cache = RadixCache(10)
    root = cache.lock(match(cache, 1, namespace=("t",)))
    assert list(cache.tree.roots) == [("t",)]
    cache.unlock(root)
    assert not cache.tree.roots
    cache.unlock(put(cache, 1, 2, namespace=("t",)))
    assert list(cache.tree.roots) == [("t",)]
    cache.flush()
    assert not cache.tree.roots
    check(cache)


def test_two_requests_that_met_a_namespace_unborn_share_it() -> None:
    cache = RadixCache(10)
    first, second = match(cache, 1, 2), match(cache, 1, 2)
    slots = take(cache, 2)
    promised = cache.promise(cache.lock(first), run(1, 2), slots, step=0)
    assert cache.extend_match(second, run(1, 2, 3)) == promised
    assert cache.lock(second).node is promised.node.parent
    check(cache)


def test_lock_splits_so_that_the_handle_ends_at_a_node_and_protects_only_its_path() -> None:
    cache = RadixCache(10)
    cache.unlock(put(cache, 1, 2, 3, 4, 5))
    handle = cache.lock(match(cache, 1, 2))
    assert handle.node.end == handle.length == 2
    assert cache.num_evictable == 3
    assert cache.flush() == 3
    assert match(cache, 1, 2, 3).length == 2
    check(cache)


def test_a_lock_is_counted_and_never_given_up_twice() -> None:
    cache = RadixCache(10)
    first = put(cache, 1, 2)
    second = cache.lock(match(cache, 1, 2))
    cache.unlock(first)
    assert cache.num_evictable == 0
    cache.unlock(second)
    assert cache.num_evictable == 2
    with pytest.raises(AssertionError, match="not a locked handle"):
        cache.unlock(second)


def test_a_handle_that_was_evicted_cannot_be_locked() -> None:
    cache = RadixCache(10)
    cache.unlock(put(cache, 1, 2))
    stale = match(cache, 1, 2)
    cache.flush()
    with pytest.raises(AssertionError, match="no longer in the tree"):
        cache.lock(stale)


def test_a_promise_is_matched_before_its_step_has_settled() -> None:
    cache = RadixCache(10)
    promised = promise(cache, 1, 2, 3, step=0)
    assert match(cache, 1, 2, 3, 4) == promised
    follower = cache.lock(match(cache, 1, 2))
    assert follower.node.step == 0 and promised.node.step == 0
    check(cache)
    cache.settle(0)
    assert follower.node.step is None and promised.node.step is None
    check(cache)


def test_eight_equal_prompts_at_once_take_the_slots_of_one() -> None:
    cache = RadixCache(2000)
    prompt = np.arange(1000, dtype=np.int32)
    for _ in range(8):
        handle = cache.lock(cache.match_prefix((), prompt, 999))
        rest = prompt[handle.length : 999]
        if len(rest):
            cache.promise(handle, rest, take(cache, len(rest)), step=0)
    assert cache.num_cached == 999
    check(cache)


def test_a_promise_must_start_where_the_tree_ends() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2)
    root = cache.lock(match(cache))
    with pytest.raises(AssertionError, match="already begins"):
        cache.promise(root, run(1, 5), take(cache, 2), step=0)


def test_a_promise_needs_a_locked_handle_and_a_step_to_come() -> None:
    cache = RadixCache(10)
    cache.settle(4)
    cache.unlock(put(cache, 1))
    slots = take(cache, 1)
    with pytest.raises(AssertionError, match="not a locked handle"):
        cache.promise(match(cache, 1), run(2), slots, step=5)
    with pytest.raises(AssertionError, match="over already"):
        cache.promise(cache.lock(match(cache, 1)), run(2), slots, step=4)


def test_the_promiser_must_keep_its_lock_until_the_step_settles() -> None:
    cache = RadixCache(10)
    cache.unlock(promise(cache, 1, 2, step=0))
    with pytest.raises(AssertionError, match="before its step settled"):
        cache.flush()
    with pytest.raises(AssertionError, match="before step 0 settled"):
        cache.settle(0)


def test_insert_keeps_the_trees_slots_and_releases_the_callers() -> None:
    cache = RadixCache(10)
    kept = put(cache, 1, 2, 3, 4)
    root = cache.lock(match(cache))
    mine = take(cache, 4)
    handle = cache.insert(root, run(1, 2, 9, 9), mine, after_step=None)
    expected = [*cache.slots_of(kept)[:2].tolist(), *mine[2:].tolist()]
    assert cache.slots_of(handle).tolist() == expected
    assert (cache.num_cached, cache.num_in_use, cache.num_free) == (6, 0, 4)
    check(cache)


def test_duplicates_stay_pending_until_the_step_that_may_touch_them_is_over() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2)
    root = cache.lock(match(cache))
    handle = cache.insert(root, run(1, 2), take(cache, 2), after_step=3)
    assert (handle.length, cache.num_pending, cache.num_free) == (2, 2, 6)
    cache.settle(2)
    assert cache.num_pending == 2
    cache.settle(3)
    assert (cache.num_pending, cache.num_free) == (0, 8)
    check(cache)


def test_inserting_nothing_returns_the_same_point() -> None:
    cache = RadixCache(10)
    handle = put(cache, 1, 2)
    assert cache.insert(handle, run(), run(), after_step=None) == handle
    check(cache)


def test_release_waits_for_its_step_unless_that_is_over() -> None:
    cache = RadixCache(10)
    cache.settle(0)
    cache.release(take(cache, 1), after_step=0)
    assert cache.num_free == 10
    cache.release(take(cache, 2), after_step=1)
    cache.release(take(cache, 3), after_step=2)
    cache.settle(1)
    assert (cache.num_pending, cache.num_free) == (3, 7)
    cache.settle(2)
    assert cache.num_free == 10


def test_the_callers_arrays_may_change_afterwards() -> None:
    cache = RadixCache(10)
    ids, slots = run(1, 2), take(cache, 2)
    expected = slots.tolist()
    handle = cache.promise(cache.lock(match(cache)), ids, slots, step=0)
    waiting = take(cache, 2)
    cache.release(waiting, after_step=0)
    ids[:], slots[:], waiting[:] = 7, 7, 7
    assert cache.slots_of(match(cache, 1, 2)).tolist() == expected
    cache.slots_of(handle)[:] = 7
    cache.settle(0)
    check(cache)


def test_alloc_evicts_no_more_than_it_needs_and_only_the_tail_of_a_leaf() -> None:
    cache = RadixCache(10)
    cache.unlock(put(cache, 1, 2, 3, 4, 5, 6))
    slots = take(cache, 6)
    assert cache.num_evicted == 2
    assert match(cache, 1, 2, 3, 4, 5, 6).length == 4
    check(cache, [slots])


def test_alloc_beyond_what_is_available_returns_none_and_evicts_nothing() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2, 3)
    cache.unlock(put(cache, 7, 8))
    assert cache.num_available == 7
    assert cache.alloc(8) is None
    assert (cache.num_evicted, cache.num_cached) == (0, 5)
    check(cache, [take(cache, 7)])


def test_the_least_recently_used_leaf_goes_first_and_a_lock_renews() -> None:
    cache = RadixCache(6)
    for first in (1, 2, 3):
        cache.unlock(put(cache, first, first))
    cache.unlock(cache.lock(match(cache, 1, 1)))
    take(cache, 2)
    assert [match(cache, i, i).length for i in (1, 2, 3)] == [2, 0, 2]


def test_a_use_marks_the_whole_path_and_a_split_keeps_the_marks() -> None:
    cache = RadixCache(10)
    first = put(cache, 1, 2, 3)
    cache.note_use(first, -2)
    assert (first.node.use_count, first.node.priority) == (1, -2)
    second = put(cache, 1, 2, 4)
    cache.note_use(second, 5)
    shared = second.node.parent
    assert shared is not None and shared.end == 2
    assert (shared.use_count, shared.priority) == (2, 5)
    assert (first.node.use_count, first.node.priority) == (1, -2)
    cache.note_use(first, -7)
    assert (first.node.use_count, first.node.priority) == (2, -2)
    check(cache)


def test_locks_alone_are_no_uses() -> None:
    cache = RadixCache(10)
    handle = put(cache, 1, 2)
    cache.unlock(cache.lock(handle))
    assert handle.node.use_count == 0
    cache.unlock(handle)
    with pytest.raises(AssertionError, match="not a locked handle"):
        cache.note_use(handle)


def test_what_was_used_most_outlives_what_was_used_last() -> None:
    cache = RadixCache(4, strategy=LFU())
    for ids in ((1, 2), (1, 2), (3, 4)):
        handle = put(cache, *ids)
        cache.note_use(handle)
        cache.unlock(handle)
    take(cache, 2)
    assert match(cache, 1, 2).length == 2
    assert match(cache, 3, 4).length == 0


def test_a_parent_is_evicted_after_its_children() -> None:
    cache = RadixCache(4)
    cache.unlock(put(cache, 1, 2, 3))
    cache.unlock(put(cache, 1, 2, 4))
    slots = take(cache, 3)
    assert match(cache, 1, 2).length == 1
    check(cache, [slots])


def test_steps_end_in_order() -> None:
    cache = RadixCache(10)
    promise(cache, 1, step=1)
    promise(cache, 2, step=2)
    with pytest.raises(AssertionError):
        cache.settle(2)
    cache.settle(1)
    cache.settle(2)
    with pytest.raises(AssertionError):
        cache.settle(2)


def test_a_failed_step_withdraws_its_promises_and_frees_what_waited() -> None:
    cache = RadixCache(20)
    settled = put(cache, 1, 2)
    cache.release(take(cache, 2), after_step=5)
    cache.release(take(cache, 1), after_step=6)
    first = promise(cache, 1, 2, 3, step=5)
    sharer = promise(cache, 1, 2, 3, 4, step=6)
    bystander = promise(cache, 8, 9, step=6)
    for handle in (first, sharer, bystander):
        anchor = cache.sound_ancestor(handle, unsettled)
        cache.lock(anchor)
        cache.unlock(handle)
    assert cache.fail(6) == 4
    assert match(cache, 1, 2, 3, 4) == settled
    assert match(cache, 8, 9).length == 0
    assert (cache.num_cached, cache.num_pending, cache.num_free) == (2, 0, 18)
    assert promise(cache, 8, 9, step=7).length == 2
    check(cache)


def test_a_poisoned_node_takes_its_sharers_with_it_and_nobody_else() -> None:
    cache = RadixCache(20)
    sound = put(cache, 1, 2)
    poisoned = put(cache, 1, 2, 3)
    sharer = put(cache, 1, 2, 3, 4)
    put(cache, 1, 5)
    assert cache.sound_ancestor(sound, only(poisoned.node)) == sound
    for handle in (poisoned, sharer):
        assert cache.sound_ancestor(handle, only(poisoned.node)) == sound
        cache.unlock(handle)
    assert cache.withdraw(only(poisoned.node)) == 2
    assert match(cache, 1, 2, 3, 4).length == 2
    assert match(cache, 1, 5).length == 2
    assert cache.num_evicted == 0
    check(cache)


def test_withdrawing_a_locked_node_is_a_bug() -> None:
    cache = RadixCache(10)
    locked = put(cache, 1)
    cache.unlock(put(cache, 1, 2))
    with pytest.raises(AssertionError, match="withdrawn while locked"):
        cache.withdraw(only(locked.node))


def test_flush_spares_locked_tokens() -> None:
    cache = RadixCache(10)
    put(cache, 1, 2)
    cache.unlock(put(cache, 1, 2, 3, 4))
    cache.unlock(put(cache, 9))
    assert cache.flush() == 3
    assert (cache.num_cached, cache.num_evicted, cache.num_available) == (2, 3, 8)
    assert cache.flush() == 0
