"""The radix cache: owns the tree, the slots and the locks; knows no requests, models or torch.

Every slot is free, cached (in the tree), in use (held by a caller) or pending (given back,
but a step in flight may still touch it):

    num_free + num_cached + num_in_use + num_pending == num_slots

A lock counts on its node and on all above it, so the unlocked tokens are exactly those that
eviction can reach from the leaves. A node may enter the tree before its KV exists: it is
*promised*, `node.step` says by which step, and it is *settled* when that step is. Whoever
promised it keeps it locked until then.

A life of one request, `A B C` being prompt chunks and `o` what it generates:

    match_prefix ─▶ lock      the cached part of the prompt
    alloc ─▶ promise          chunk by chunk; others may match it at once
    alloc …                   slots of generated tokens, private until settled
    insert                    A B C o, for whoever comes next
    note_use ─▶ unlock        what eviction goes by

Steps end in order, each by `settle(step)`. When one fails, all steps in flight are drained,
every holder moves its lock to the `sound_ancestor` of its handle, and `fail(step)` ends them
together: what they should have filled leaves the tree, what waited for them becomes free.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

from .core import Books, Handle, Node, detach, trim
from .eviction import LRU, EvictableLeaves, EvictionStrategy
from .observer import TreeObserver
from .slots import SlotState
from .tree import ancestry, subtree
from .types import IntArray

__all__ = ["Handle", "RadixCache"]


class RadixCache(Books):
    """A token-granular prefix cache over `num_slots` KV slots.

    The attributes `tree`, `pool`, `leaves`, `unsettled` and `pending` are there for check.py
    and picture.py to read.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        strategy: EvictionStrategy | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Evicts by `strategy`, the least recently used first unless told otherwise. `now`: the
        time in seconds, by which nothing is decided."""
        self._strategy = strategy or LRU()
        super().__init__(num_slots, EvictableLeaves(self._strategy), now)
        self._eviction_watchers: list[Callable[[int, float], None]] = []
        self._num_evicted = 0

    @property
    def num_evicted(self) -> int:
        """Tokens evicted since the cache was made."""
        return self._num_evicted

    def observe(self, observer: TreeObserver) -> None:
        """Tell `observer` of every change of the tree from now on."""
        self._observers.append(observer)

    def stop_observing(self, observer: TreeObserver) -> None:
        """Tell it no more."""
        self._observers.remove(observer)

    def watch_evictions(self, tell: Callable[[int, float], None]) -> None:
        """Call `tell` at every eviction: how many tokens, and the seconds since the last lock on
        them was given up."""
        self._eviction_watchers.append(tell)

    def sound_ancestor(self, handle: Handle, doomed: Callable[[Node], bool]) -> Handle:
        """The deepest prefix of `handle` with no doomed node at or above it."""
        sound = self.tree.locate(handle)
        for node in ancestry(sound.node):
            if node.parent is not None and doomed(node):
                sound = Handle(node.parent, node.start)
        return sound

    def settle(self, step: int) -> None:
        """`step` has succeeded: its promises are kept, and slots that waited for it are free."""
        assert all(step <= other for other in self.unsettled), (step, list(self.unsettled))
        for node in self.unsettled.pop(step, ()):
            assert node.lock_count > 0, f"unlocked before step {step} settled: {node}"
            node.step = None
        self._end_step(step)

    def fail(self, step: int) -> int:
        """No step up to `step`, the newest one launched, will settle: all have been drained.

        Withdraws every node that they should have filled (the holders have moved their locks
        away), and frees the slots that waited for them. Returns the tokens withdrawn.
        """
        withdrawn = self.withdraw(lambda node: node.step is not None)
        self._end_step(step)
        return withdrawn

    def withdraw(self, doomed: Callable[[Node], bool]) -> int:
        """Take every doomed node out of the tree with all below it, none of them locked.

        Their slots are free at once, so no step in flight may touch them. Walks the whole
        tree. Returns the tokens withdrawn.
        """
        withdrawn = 0
        for top in self.tree.topmost(doomed):
            assert not top.lock_count, f"withdrawn while locked: {top}"
            for node in reversed(list(subtree(top))):
                withdrawn += len(node.key)
                self._remove(node)
                self.pool.free(node.slots, SlotState.CACHED)
        return withdrawn

    def flush(self) -> int:
        """Evict all that isn't locked; returns the tokens evicted."""
        evicted = self._num_evictable
        self._evict(evicted)
        return evicted

    def reset(self, last_step: int) -> None:
        """Start over with an empty tree and all slots free, whatever the books say.

        For books that contradict themselves. No handle and no slot of before may be used any
        more, and `last_step`, the newest one launched, must be over.
        """
        self._start_over(EvictableLeaves(self._strategy), last_step)
        for observer in self._observers:
            observer.cleared()

    def _remove(self, leaf: Node) -> None:
        self.leaves.discard(leaf)
        self._num_evictable -= len(leaf.key)
        if leaf.step is not None:
            self.unsettled[leaf.step].discard(leaf)
            if not self.unsettled[leaf.step]:
                del self.unsettled[leaf.step]
        parent = detach(leaf)
        for observer in self._observers:
            observer.detached(leaf, parent)
        self._offer(parent)

    def _evict(self, n: int) -> None:
        """Evict exactly `n` tokens, from the ends of leaves."""
        self._num_evicted += n
        freed: list[IntArray] = []
        now = self._now()
        while n > 0:
            leaf = self.leaves.first()
            assert leaf.step is None, f"unlocked before its step settled: {leaf}"
            if len(leaf.key) > n:
                slots = trim(leaf, n)
                self._num_evictable -= n
                for observer in self._observers:
                    observer.trimmed(leaf, n)
            else:
                slots = leaf.slots
                self._remove(leaf)
            freed.append(slots)
            for tell in self._eviction_watchers:
                tell(len(slots), now - leaf.last_used_s)
            n -= len(slots)
        if freed:
            self.pool.free(np.concatenate(freed), SlotState.CACHED)

    def _end_step(self, step: int) -> None:
        assert step > self.last_step, f"step {step} ends after step {self.last_step}"
        self.last_step = step
        for waited in [waited for waited in self.pending if waited <= step]:
            for slots in self.pending.pop(waited):
                self.pool.free(slots, SlotState.PENDING)
