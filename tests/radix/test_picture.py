"""The picture of a cache, character by character."""

from __future__ import annotations

import numpy as np

from espalier.radix.cache import RadixCache
from espalier.radix.picture import picture


def test_a_cache_is_drawn_with_locks_promises_and_long_runs_cut_short() -> None:
    cache = RadixCache(30)
    long = np.arange(10, 22, dtype=np.int32)
    shared = cache.insert(
        cache.lock(cache.match_prefix(("a", "b"), long)),
        long,
        np.asarray(cache.alloc(12)),
        after_step=None,
    )
    ids = np.array([7, 8], dtype=np.int32)
    cache.promise(cache.lock(shared), ids, np.asarray(cache.alloc(2)), step=3)
    tail = cache.lock(shared)
    cache.unlock(cache.insert(tail, ids[1:], np.asarray(cache.alloc(1)), after_step=None))
    cache.lock(cache.match_prefix((), ids))
    cache.release(np.asarray(cache.alloc(2)), after_step=3)
    assert picture(cache).splitlines() == [
        "slots 30 = 13 free + 15 cached (1 evictable) + 0 in use + 2 pending; last step -1",
        "namespace ('a', 'b')  locks=2",
        "└─ [10 11 12 13 14 15 .. 21] 12 tokens  locks=2",
        "   ├─ [7 8] 2 tokens  locks=1 step=3",
        "   └─ [8] 1 token",
        "namespace ()  locks=1",
    ]


def test_branches_are_joined_by_lines() -> None:
    cache = RadixCache(10)
    for ids in ([1, 2], [1, 3], [4]):
        run = np.array(ids, dtype=np.int32)
        handle = cache.lock(cache.match_prefix((), run))
        rest = run[handle.length :]
        slots = np.asarray(cache.alloc(len(rest)))
        cache.unlock(cache.insert(handle, rest, slots, after_step=None))
    assert picture(cache).splitlines()[1:] == [
        "namespace ()",
        "├─ [1] 1 token",
        "│  ├─ [2] 1 token",
        "│  └─ [3] 1 token",
        "└─ [4] 1 token",
    ]
