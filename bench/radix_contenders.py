"""The caches that bench/radix.py compares, each behind the same few verbs.

A contender gets token ids in the form that it likes best (`key_of`, outside of the timing) and
lives a request's life as its design would: ours goes on from its handle, the others walk every
insertion from the root.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from bench.radix_usual import UsualCache
from espalier.radix import IntArray, RadixCache


class Contender(Protocol):
    """A cache with room for as many tokens as a workload has."""

    name: str

    def key_of(self, ids: IntArray) -> Any:
        """The ids as this cache takes them."""
        ...

    def live(self, prompt: Any, whole: Any) -> int:
        """Match and lock a prompt, insert it, insert it with its output, unlock; the match."""
        ...

    def match(self, key: Any) -> int:
        """How much of a key is cached."""
        ...

    def lock_and_unlock(self, key: Any, times: int) -> None:
        """Match once, then lock and unlock the path again and again."""
        ...

    def evict(self, num_tokens: int) -> None:
        """Make so many tokens go, or a few more."""
        ...


class Ours:
    """`RadixCache`, with its slots: evicting is allocating from a full pool."""

    name = "espalier"

    def __init__(self, num_slots: int) -> None:
        self.cache = RadixCache(num_slots)

    def key_of(self, ids: IntArray) -> IntArray:
        return ids

    def live(self, prompt: IntArray, whole: IntArray) -> int:
        cache = self.cache
        handle = cache.lock(cache.match_prefix((), prompt))
        known = handle.length
        for key in (prompt, whole):
            rest = key[handle.length :]
            slots = cache.alloc(len(rest))
            assert slots is not None
            handle = cache.insert(handle, rest, slots, after_step=None)
        cache.note_use(handle)
        cache.unlock(handle)
        return known

    def match(self, key: IntArray) -> int:
        return self.cache.match_prefix((), key).length

    def lock_and_unlock(self, key: IntArray, times: int) -> None:
        handle = self.cache.match_prefix((), key)
        for _ in range(times):
            self.cache.unlock(self.cache.lock(handle))

    def evict(self, num_tokens: int) -> None:
        slots = self.cache.alloc(self.cache.num_free + num_tokens)
        assert slots is not None


class Usual:
    """The plain re-implementation; slots come off the front of one array."""

    name = "usual design"

    def __init__(self, num_slots: int) -> None:
        self._cache = UsualCache()
        self._free: IntArray = np.arange(num_slots, dtype=np.int32)

    def key_of(self, ids: IntArray) -> list[int]:
        return cast("list[int]", ids.tolist())

    def live(self, prompt: list[int], whole: list[int]) -> int:
        cache = self._cache
        known, node = cache.match(prompt)
        cache.lock(node)
        row = np.empty(len(whole), np.int32)
        row[known:] = self._take(len(whole) - known)
        _, end = cache.insert(prompt, row[: len(prompt)])
        cache.lock(end)
        cache.unlock(node)
        cache.insert(whole, row)
        cache.unlock(end)
        return known

    def _take(self, n: int) -> IntArray:
        taken, self._free = self._free[:n], self._free[n:]
        return taken

    def match(self, key: list[int]) -> int:
        return self._cache.match(key)[0]

    def lock_and_unlock(self, key: list[int], times: int) -> None:
        _, node = self._cache.match(key)
        for _ in range(times):
            self._cache.lock(node)
            self._cache.unlock(node)

    def evict(self, num_tokens: int) -> None:
        self._cache.evict(num_tokens)
