"""Leases: locks on paths that end by themselves; owns when they do, and how much they may hold.

Knows no requests. A lease is the last of all locks to be respected: it keeps its path from
being evicted for others' cached tokens, but yields before anybody goes without slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .cache import Handle, RadixCache
from .lazy_heap import LazyHeap
from .tree import Node


class Leases:
    """The leases on paths of one cache, one at most on each node that a path ends with."""

    def __init__(self, cache: RadixCache, *, max_tokens: int, now: Callable[[], float]) -> None:
        """At most `max_tokens` of the cache are leased; `now` is a clock in seconds."""
        self.max_tokens = max_tokens
        self._cache = cache
        self._now = now
        self._expiries: dict[Node, float] = {}
        self._by_expiry = LazyHeap[Node]()

    def __len__(self) -> int:
        return len(self._expiries)

    def __iter__(self) -> Iterator[Node]:
        """The nodes at whose ends leased paths end."""
        return iter(self._expiries)

    @property
    def next_expiry_s(self) -> float | None:
        """Seconds until the next lease expires, none if it has; None if there are no leases."""
        first = self._first()
        return None if first is None else max(self._expiries[first] - self._now(), 0.0)

    def take(self, handle: Handle, duration_s: float) -> bool:
        """Keep the path to a locked handle for so long; whether it is granted.

        A path that is leased to the same end is kept for the longer of both times. Others
        yield, the soonest to expire first, where all would be more than `max_tokens`; a path
        that is longer than that by itself, or empty, is not leased.
        """
        if not 0 < handle.length <= self.max_tokens:
            return False
        self._keep(handle, self._now() + duration_s)
        while self._cache.num_leased > self.max_tokens:
            other = self._first(besides=handle.node)
            assert other is not None, f"{self._cache.num_leased} tokens of one lease"
            self._end(other)
        return True

    def expire(self) -> bool:
        """End the leases whose time has come; whether there were any."""
        now, any_ended = self._now(), False
        while (first := self._first()) is not None and self._expiries[first] <= now:
            self._end(first)
            any_ended = True
        return any_ended

    def make_room(self, num_slots: int) -> None:
        """End leases, the soonest to expire first, until so many slots are available.

        None is ended that can't help: where locks protect all that is leased.
        """
        while self._cache.num_available < num_slots and self._cache.num_yieldable:
            first = self._first()
            assert first is not None, f"{self._cache.num_yieldable} tokens of no lease"
            self._end(first)

    def roll_back(self, doomed: Callable[[Node], bool]) -> None:
        """Doomed nodes are to be withdrawn: what is sound of the leased paths stays leased."""
        for node, expiry in list(self._expiries.items()):
            anchor = self._cache.sound_ancestor(Handle(node, node.end), doomed)
            if anchor.length == node.end:
                continue
            if anchor.length:
                self._keep(anchor, expiry)
            self._end(node)

    def clear(self) -> None:
        """End all leases."""
        for node in list(self._expiries):
            self._end(node)

    def forget(self) -> None:
        """The cache was reset: there is nothing left to be leased."""
        self._expiries.clear()
        self._by_expiry = LazyHeap[Node]()

    def _first(self, besides: Node | None = None) -> Node | None:
        """The lease that is the next to expire."""
        in_order = (node for _, node in self._by_expiry.in_order())
        return next(filter(lambda node: node is not besides, in_order), None)

    def _keep(self, handle: Handle, expiry: float) -> None:
        node = handle.node
        assert handle.length == node.end, (handle.length, node)
        if node not in self._expiries:
            self._cache.lease(handle)
        self._expiries[node] = max(expiry, self._expiries.get(node, expiry))
        self._by_expiry.put(node, self._expiries[node])

    def _end(self, node: Node) -> None:
        del self._expiries[node]
        self._by_expiry.discard(node)
        self._cache.end_lease(Handle(node, node.end))
