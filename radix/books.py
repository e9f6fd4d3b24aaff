"""What every request and step asks of a cache: the tree, the slots and the locks, counted.

The readable form of radix/csrc/books.h, and what runs where that has not been built. Does not
know when steps end or which leaf goes first: see cache.py, which builds on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from .eviction import EvictableLeaves
from .observer import TreeObserver
from .slots import SlotPool, SlotState
from .tree import Handle, Node, RadixTree, ancestry, attach, split
from .types import IntArray, Namespace


class Books(ABC):
    """The hot half of `RadixCache`; the other half evicts, and ends steps."""

    def __init__(self, num_slots: int, leaves: EvictableLeaves, now: Callable[[], float]) -> None:
        self.tree = RadixTree()
        self.pool = SlotPool(num_slots)
        self.leaves = leaves
        self.unsettled: dict[int, set[Node]] = {}
        self.pending: dict[int, list[IntArray]] = {}
        self.last_step = -1
        self._observers: list[TreeObserver] = []
        self._num_evictable: int = 0
        self._num_leased = 0
        self._num_yieldable = 0
        self._num_runs = 0
        self._clock = 0
        self._now = now

    @property
    def num_slots(self) -> int:
        return self.pool.num_slots

    @property
    def num_free(self) -> int:
        return self.pool.count(SlotState.FREE)

    @property
    def num_cached(self) -> int:
        """Tokens in the tree, promised ones included."""
        return self.pool.count(SlotState.CACHED)

    @property
    def num_in_use(self) -> int:
        return self.pool.count(SlotState.IN_USE)

    @property
    def num_pending(self) -> int:
        return self.pool.count(SlotState.PENDING)

    @property
    def num_evictable(self) -> int:
        """Cached tokens that no lock protects."""
        return self._num_evictable

    @property
    def num_available(self) -> int:
        """The largest n for which `alloc(n)` succeeds."""
        return self.num_free + self._num_evictable

    @property
    def num_leased(self) -> int:
        """Cached tokens that at least one lease protects."""
        return self._num_leased

    @property
    def num_yieldable(self) -> int:
        """Cached tokens that leases alone protect: evictable once all leases have ended."""
        return self._num_yieldable

    def match_prefix(
        self, namespace: Namespace, ids: IntArray, max_len: int | None = None
    ) -> Handle:
        """The longest prefix of `ids[:max_len]` in the tree, settled or promised.

        The handle is good until the next call that may evict; lock it before that.
        """
        return self.tree.descend(self.tree.origin(namespace), ids[:max_len])

    def extend_match(self, handle: Handle, ids: IntArray) -> Handle:
        """Go deeper from `handle` with the ids that follow it."""
        return self.tree.descend(handle, ids)

    def slots_of(self, handle: Handle, start: int = 0) -> IntArray:
        """The slots of positions [start, handle.length) on the way to `handle`, int32, a copy."""
        assert 0 <= start <= handle.length, (start, handle)
        point = self.tree.locate(handle)
        runs: list[IntArray] = []
        for node in ancestry(point.node):
            if node.end <= start:
                break
            runs.append(node.slots[max(start - node.start, 0) : point.length - node.start])
        return np.concatenate(runs[::-1]) if runs else np.empty(0, dtype=np.int32)

    def lock(self, handle: Handle) -> Handle:
        """Protect the path to `handle`; the handle returned ends at the end of its node."""
        point = self.tree.locate(handle)
        if point.length == 0:
            point = Handle(self.tree.plant(point.node), 0)
        assert self.tree.holds(point.node), f"{point.node} is no longer in the tree"
        node = self._node_ending_at(point)
        self._add_lock(node, above=None)
        return Handle(node, point.length)

    def note_use(self, handle: Handle, priority: int = 0) -> None:
        """A request of this priority has used the path to a locked handle.

        Eviction strategies go by it. Locks alone don't tell: one request may take several.
        """
        self._assert_locked(handle)
        for node in ancestry(handle.node):
            node.priority = max(node.priority, priority) if node.use_count else priority
            node.use_count += 1

    def unlock(self, handle: Handle) -> None:
        """Give up one lock, taken by `lock` or moved by `promise` or `insert`."""
        self._assert_locked(handle)
        self._clock += 1
        now = self._now()
        for node in ancestry(handle.node):
            assert node.lock_count > node.lease_count, f"unlocked too often: {node}"
            node.lock_count -= 1
            node.last_access = self._clock
            node.last_used_s = now
            if not node.lock_count:
                self._num_evictable += len(node.key)
            elif node.lock_count == node.lease_count:
                self._num_yieldable += len(node.key)
        self._offer(handle.node)

    def lease(self, handle: Handle) -> Handle:
        """Lock the path to `handle` in a way that is counted apart; `end_lease` unlocks it."""
        handle = self.lock(handle)
        for node in ancestry(handle.node):
            if not node.lease_count:
                self._num_leased += len(node.key)
            node.lease_count += 1
            if node.lease_count == node.lock_count:
                self._num_yieldable += len(node.key)
        return handle

    def end_lease(self, handle: Handle) -> None:
        """Give up one lock that was taken by `lease`."""
        self._assert_locked(handle)
        for node in ancestry(handle.node):
            assert node.lease_count > 0, f"no lease to end: {node}"
            if node.lease_count == node.lock_count:
                self._num_yieldable -= len(node.key)
            node.lease_count -= 1
            if not node.lease_count:
                self._num_leased -= len(node.key)
        self.unlock(handle)

    def alloc(self, n: int) -> IntArray | None:
        """Take `n` slots into use, evicting what that needs; None if there aren't as many.

        None evicts nothing. The slots are the caller's until `promise`, `insert` or `release`.
        """
        if n > self.num_available:
            return None
        self._evict(max(n - self.num_free, 0))
        return self.pool.alloc(n)

    def release(self, slots: IntArray, *, after_step: int | None) -> None:
        """Give back slots in use: free at once, or when `after_step` is over."""
        if after_step is None or after_step <= self.last_step:
            self.pool.free(slots)
        elif len(slots):
            self.pool.move(slots, SlotState.IN_USE, SlotState.PENDING)
            self.pending.setdefault(after_step, []).append(slots.copy())

    def promise(self, handle: Handle, ids: IntArray, slots: IntArray, *, step: int) -> Handle:
        """Hang `ids` below a locked handle, for `step` to fill `slots` with their KV.

        The tree must have no child there that begins with `ids[0]`. The caller's lock moves
        to the returned handle, where it must stay until the step has settled.
        """
        self._assert_locked(handle)
        assert step > self.last_step, f"step {step} is over already (last: {self.last_step})"
        return self._grow(handle, ids, slots, step=step)

    def insert(
        self, handle: Handle, ids: IntArray, slots: IntArray, *, after_step: int | None
    ) -> Handle:
        """Hang settled tokens, private until now, below a locked handle.

        Where the tree has them already its slots win, and the caller's are released after
        `after_step`. The caller's lock moves to the returned handle, `len(ids)` deeper.
        """
        self._assert_locked(handle)
        assert len(ids) == len(slots), (len(ids), len(slots))
        point = self.tree.descend(handle, ids)
        node = self._node_ending_at(point)
        self._add_lock(node, above=handle.node)
        known = point.length - handle.length
        self.release(slots[:known], after_step=after_step)
        if known == len(ids):
            return Handle(node, point.length)
        return self._grow(Handle(node, point.length), ids[known:], slots[known:], step=None)

    def _start_over(self, leaves: EvictableLeaves, last_step: int) -> None:
        """An empty tree and free slots, and steps that begin after `last_step`."""
        self.tree.roots.clear()
        self.pool = SlotPool(self.num_slots)
        self.leaves = leaves
        self.unsettled.clear()
        self.pending.clear()
        self.last_step = last_step
        self._num_evictable = self._num_leased = self._num_yieldable = 0

    @abstractmethod
    def _evict(self, n: int) -> None:
        """Evict exactly `n` tokens, of those that no lock protects."""

    def _assert_locked(self, handle: Handle) -> None:
        assert handle.node.lock_count > 0 and handle.length == handle.node.end, (
            f"not a locked handle: length {handle.length} of {handle.node}"
        )

    def _node_ending_at(self, point: Handle) -> Node:
        if point.length == point.node.end:
            return point.node
        upper = split(point.node, point.length)
        if upper.step is not None:
            self.unsettled[upper.step].add(upper)
        for observer in self._observers:
            observer.split(upper, point.node)
        return upper

    def _add_lock(self, node: Node, *, above: Node | None) -> None:
        """Count one more lock on `node` and its ancestors, up to `above`, which has it already."""
        for at in ancestry(node):
            if at is above:
                return
            if not at.lock_count:
                self._num_evictable -= len(at.key)
                self.leaves.discard(at)
            elif at.lock_count == at.lease_count:
                self._num_yieldable -= len(at.key)
            at.lock_count += 1

    def _grow(self, handle: Handle, ids: IntArray, slots: IntArray, *, step: int | None) -> Handle:
        assert len(ids) == len(slots) > 0, (len(ids), len(slots))
        node = Node(
            key=np.array(ids, dtype=np.int32),
            slots=np.array(slots, dtype=np.int32),
            parent=handle.node,
            end=handle.length + len(ids),
            step=step,
            lock_count=1,
            run=self._num_runs,
        )
        self._num_runs += 1
        attach(node)
        self.pool.move(node.slots, SlotState.IN_USE, SlotState.CACHED)
        if step is not None:
            self.unsettled.setdefault(step, set()).add(node)
        for observer in self._observers:
            observer.attached(node)
        return Handle(node, node.end)

    def _offer(self, node: Node) -> None:
        """A node has lost a lock or a child: an idle leaf is evictable, an idle root goes."""
        if node.lock_count or node.children:
            return
        if node.is_root:
            self.tree.uproot(node)
        else:
            self.leaves.add(node)
