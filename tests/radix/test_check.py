"""The walker finds every way in which a cache can contradict itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.check import AccountingError, check
from espalier.radix.leases import Leases
from espalier.radix.slots import SlotState
from espalier.radix.tree import Node
from espalier.radix.types import IntArray


def run(*ids: int) -> IntArray:
    return np.array(ids, dtype=np.int32)


def take(cache: RadixCache, n: int) -> IntArray:
    slots = cache.alloc(n)
    assert slots is not None
    return slots


def sample() -> tuple[RadixCache, IntArray]:
    """One cache with everything in it, and the slots held privately.

    ()                       locks=2
    └─ [1 2]                 locks=2, used once with priority 3
       ├─ [3 4]              unlocked: the only evictable leaf; used by the same request
       └─ [5]                locks=1 step=7
    """
    cache = RadixCache(12)
    base = cache.lock(cache.match_prefix((), run()))
    base = cache.insert(base, run(1, 2), take(cache, 2), after_step=None)
    again = cache.lock(base)
    again = cache.insert(again, run(3, 4), take(cache, 2), after_step=None)
    cache.note_use(again, 3)
    cache.unlock(again)
    cache.promise(cache.lock(base), run(5), take(cache, 1), step=7)
    cache.release(take(cache, 1), after_step=7)
    return cache, take(cache, 2)


def node_of(cache: RadixCache, first: int) -> Node:
    return next(node for node in cache.tree.nodes() if node.key[0] == first)


def test_a_sound_cache_passes() -> None:
    cache, private = sample()
    check(cache, [private[:1], private[1:]])


def test_slots_in_use_must_all_be_shown_and_none_besides() -> None:
    cache, private = sample()
    for wrong in ([], [private[:1]], [private, private[:1]], [private, run(11)]):
        with pytest.raises(AccountingError, match="IN_USE"):
            check(cache, wrong)


def misfile(cache: RadixCache) -> None:
    children = node_of(cache, 1).children
    children[9] = children.pop(3)


def empty_a_run(cache: RadixCache) -> None:
    node = node_of(cache, 5)
    node.key = run()


def unlink(cache: RadixCache) -> None:
    node_of(cache, 3).parent = node_of(cache, 5)


def misplace(cache: RadixCache) -> None:
    node_of(cache, 3).end += 1


def lose_slots(cache: RadixCache) -> None:
    node = node_of(cache, 3)
    node.slots = node.slots[:1]


def share_a_slot(cache: RadixCache) -> None:
    node_of(cache, 3).slots = node_of(cache, 1).slots


def over_lock(cache: RadixCache) -> None:
    node_of(cache, 5).lock_count += 2


def under_lock(cache: RadixCache) -> None:
    node_of(cache, 5).lock_count = 0


def overuse(cache: RadixCache) -> None:
    node_of(cache, 3).use_count += 1


def overrate(cache: RadixCache) -> None:
    node_of(cache, 3).priority = 4


def rejuvenate(cache: RadixCache) -> None:
    node_of(cache, 3).last_access += 1


def leave_an_idle_root(cache: RadixCache) -> None:
    cache.tree.plant(cache.tree.origin(("idle",)).node)


def rename_a_root(cache: RadixCache) -> None:
    cache.tree.roots[("other",)] = cache.tree.roots.pop(())


def forget_a_promise(cache: RadixCache) -> None:
    cache.unsettled.clear()


def miss_a_step(cache: RadixCache) -> None:
    cache.last_step = 7


def forget_a_leaf(cache: RadixCache) -> None:
    cache.leaves.discard(node_of(cache, 3))


def miscount_a_lease(cache: RadixCache) -> None:
    node_of(cache, 1).lease_count = 1


def lease_behind_its_back(cache: RadixCache) -> None:
    cache.lease(Handle(node_of(cache, 3), 4))


def drop_pending(cache: RadixCache) -> None:
    cache.pending.clear()


def free_a_cached_slot(cache: RadixCache) -> None:
    cache.pool.free(node_of(cache, 3).slots, SlotState.CACHED)


def trim_unbooked(cache: RadixCache) -> None:
    node = node_of(cache, 3)
    cache.pool.free(node.slots[1:], SlotState.CACHED)
    node.key, node.slots, node.end = node.key[:1], node.slots[:1], node.end - 1


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (misfile, "filed under id 9"),
        (empty_a_run, "filed under id 5"),
        (unlink, "does not continue its parent"),
        (misplace, "does not continue its parent"),
        (lose_slots, "has 1 slots"),
        (share_a_slot, "CACHED: found"),
        (over_lock, "locks below"),
        (under_lock, "promised but not locked"),
        (overuse, "used less often than"),
        (overrate, "of a lower priority than"),
        (rejuvenate, "older than"),
        (leave_an_idle_root, "neither children nor locks"),
        (rename_a_root, "is not a root"),
        (forget_a_promise, "promised nodes"),
        (miss_a_step, "which is over"),
        (forget_a_leaf, "evictable leaves"),
        (miscount_a_lease, "0 leases found, 1 counted"),
        (miscount_a_lease, "leased tokens: found 2, counted 0"),
        (lease_behind_its_back, "0 leases found, 1 counted"),
        (drop_pending, "PENDING: found"),
        (free_a_cached_slot, "do not make up the pool"),
        (trim_unbooked, "evictable tokens"),
    ],
)
def test_each_contradiction_is_found_and_drawn(
    harm: Callable[[RadixCache], None], message: str
) -> None:
    cache, private = sample()
    harm(cache)
    with pytest.raises(AccountingError, match=message) as caught:
        check(cache, [private])
    assert "slots 12 =" in str(caught.value)


def test_a_run_of_wider_numbers_is_found_if_it_is_not_refused() -> None:
    cache, private = sample()
    node = node_of(cache, 3)
    with pytest.raises((AccountingError, TypeError), match="int32"):
        node.slots = cast(IntArray, node.slots.astype(np.int64))
        check(cache, [private])


def test_leases_must_be_those_that_are_shown() -> None:
    cache, private = sample()
    leases = Leases(cache, max_tokens=4, now=lambda: 0.0)
    assert leases.take(cache.lock(Handle(node_of(cache, 3), 4)), 1.0)
    check(cache, [private], leases)
    with pytest.raises(AccountingError, match="0 leases found, 1 counted"):
        check(cache, [private])
    leases.max_tokens = 3
    with pytest.raises(AccountingError, match="leased tokens: 4, but 3 at most"):
        check(cache, [private], leases)
