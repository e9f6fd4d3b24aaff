"""The native core against Python's: the same lives, and nothing that can be seen may differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.core import Node
from espalier.radix.eviction import EvictionStrategy
from espalier.radix.slots import SlotState
from espalier.radix.tree import subtree
from espalier.radix.types import IntArray, Namespace
from tests.radix.plain import PlainCache, PlainHandle, PlainNode
from tests.radix.test_cache_machine import CacheMachine

pytest.importorskip("espalier.radix._core")

POOL = ("num_slots", "num_free", "num_cached", "num_in_use", "num_pending")
LOCKS = ("num_evictable", "num_available", "num_leased", "num_yieldable", "num_evicted")
PLACE = ("start", "end", "step", "namespace", "is_root", "run", "ticket")
COUNTS = ("lock_count", "lease_count", "last_access", "use_count", "priority", "last_used_s")


class Twins(RadixCache):
    """Does everything twice, here and in a plain cache, and compares the two each time."""

    def __init__(self, num_slots: int, *, strategy: EvictionStrategy | None = None) -> None:
        self.time = 0.0
        super().__init__(num_slots, strategy=strategy, now=lambda: self.time)
        self.plain = PlainCache(num_slots, strategy=strategy, now=lambda: self.time)
        self._twin_of: dict[Node, PlainNode] = {}
        self._original_of: dict[PlainNode, Node] = {}

    def match_prefix(
        self, namespace: Namespace, ids: IntArray, max_len: int | None = None
    ) -> Handle:
        found = super().match_prefix(namespace, ids, max_len)
        return self._both(found, self.plain.match_prefix(namespace, ids, max_len))

    def extend_match(self, handle: Handle, ids: IntArray) -> Handle:
        found = super().extend_match(handle, ids)
        return self._both(found, self.plain.extend_match(self._twin(handle), ids))

    def slots_of(self, handle: Handle, start: int = 0) -> IntArray:
        found = super().slots_of(handle, start)
        assert found.tolist() == self.plain.slots_of(self._twin(handle), start).tolist()
        return found

    def sound_ancestor(self, handle: Handle, doomed: Callable[[Node], bool]) -> Handle:
        found = super().sound_ancestor(handle, doomed)
        return self._both(found, self.plain.sound_ancestor(self._twin(handle), self._as(doomed)))

    def lock(self, handle: Handle) -> Handle:
        return self._both(super().lock(handle), self.plain.lock(self._twin(handle)))

    def note_use(self, handle: Handle, priority: int = 0) -> None:
        super().note_use(handle, priority)
        self.plain.note_use(self._twin(handle), priority)
        self._compare()

    def unlock(self, handle: Handle) -> None:
        self.time += 1.0
        super().unlock(handle)
        self.plain.unlock(self._twin(handle))
        self._compare()

    def lease(self, handle: Handle) -> Handle:
        return self._both(super().lease(handle), self.plain.lease(self._twin(handle)))

    def end_lease(self, handle: Handle) -> None:
        self.time += 1.0
        super().end_lease(handle)
        self.plain.end_lease(self._twin(handle))
        self._compare()

    def alloc(self, n: int) -> IntArray | None:
        slots, plain = super().alloc(n), self.plain.alloc(n)
        assert (None if slots is None else slots.tolist()) == (
            None if plain is None else plain.tolist()
        )
        self._compare()
        return slots

    def release(self, slots: IntArray, *, after_step: int | None) -> None:
        super().release(slots, after_step=after_step)
        self.plain.release(slots, after_step=after_step)
        self._compare()

    def promise(self, handle: Handle, ids: IntArray, slots: IntArray, *, step: int) -> Handle:
        found = super().promise(handle, ids, slots, step=step)
        return self._both(found, self.plain.promise(self._twin(handle), ids, slots, step=step))

    def insert(
        self, handle: Handle, ids: IntArray, slots: IntArray, *, after_step: int | None
    ) -> Handle:
        found = super().insert(handle, ids, slots, after_step=after_step)
        plain = self.plain.insert(self._twin(handle), ids, slots, after_step=after_step)
        return self._both(found, plain)

    def settle(self, step: int) -> None:
        super().settle(step)
        self.plain.settle(step)
        self._compare()

    def fail(self, step: int) -> int:
        withdrawn = super().fail(step)  # by `withdraw`, in both
        assert self.plain.fail(step) == 0
        self._compare()
        return withdrawn

    def withdraw(self, doomed: Callable[[Node], bool]) -> int:
        plain = self.plain.withdraw(self._as(doomed))
        assert super().withdraw(doomed) == plain
        return plain

    def reset(self, last_step: int) -> None:
        super().reset(last_step)
        self.plain.reset(last_step)
        self._compare()

    def flush(self) -> int:
        evicted = super().flush()
        assert self.plain.flush() == evicted
        self._compare()
        return evicted

    def _both(self, found: Handle, plain: PlainHandle) -> Handle:
        assert found.length == plain.length
        self._pair(found.node, plain.node)
        self._compare()
        return found

    def _twin(self, handle: Handle) -> PlainHandle:
        return PlainHandle(self._twin_of[handle.node], handle.length)

    def _as(self, doomed: Callable[[Node], bool]) -> Callable[[PlainNode], bool]:
        return lambda node: doomed(self._original_of[node])

    def _pair(self, node: Node, plain: PlainNode) -> None:
        assert self._twin_of.setdefault(node, plain) is plain, (node, plain)
        assert self._original_of.setdefault(plain, node) is node, (node, plain)

    def _compare(self) -> None:
        for name in (*POOL, *LOCKS, "last_step"):
            assert getattr(self, name) == getattr(self.plain, name), name
        for state in SlotState:
            assert self.pool.members(state).tolist() == self.plain.pool.members(state).tolist()
        assert sorted(self.pool.supply()) == sorted(self.plain.pool.supply())
        self._compare_trees()
        assert as_lists(self.pending) == as_lists(self.plain.pending)
        twins = {step: {self._twin_of[n] for n in ns} for step, ns in self.unsettled.items()}
        assert twins == self.plain.unsettled
        assert [self._twin_of[leaf] for leaf in self.leaves] == list(self.plain.leaves)
        if len(self.leaves):
            assert self._twin_of[self.leaves.first()] is self.plain.leaves.first()

    def _compare_trees(self) -> None:
        assert list(self.tree.roots) == list(self.plain.tree.roots)
        for root, plain_root in zip(
            self.tree.roots.values(), self.plain.tree.roots.values(), strict=True
        ):
            for node, plain in zip(subtree(root), subtree(plain_root), strict=True):
                self._pair(node, plain)
                for name in (*PLACE, *COUNTS):
                    assert getattr(node, name) == getattr(plain, name), (name, node, plain)
                assert node.key.tolist() == plain.key.tolist()
                assert node.slots.tolist() == plain.slots.tolist()
                assert list(node.children) == list(plain.children)
                assert node.parent is None or self._twin_of[node.parent] is plain.parent
                assert repr(node) == repr(plain)
        nodes, plains = list(self.tree.nodes()), list(self.plain.tree.nodes())
        assert [self._twin_of[node] for node in nodes] == plains


def as_lists(pending: dict[int, list[IntArray]]) -> dict[int, list[list[int]]]:
    return {step: [slots.tolist() for slots in pending[step]] for step in pending}


class TwinMachine(CacheMachine):
    cache_type = Twins


TestTwinMachine = TwinMachine.TestCase
TestTwinMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_both_start_over_alike() -> None:
    cache = Twins(8)
    ids = np.arange(4, dtype=np.int32)
    for step in (3, 9):
        handle = cache.lock(cache.match_prefix(("t",), ids))
        slots = cache.alloc(6)
        assert handle.length == 0 and slots is not None
        cache.release(slots[4:], after_step=step + 1)
        cache.lease(cache.promise(handle, ids, slots[:4], step=step + 1))
        cache.reset(step + 2)
        assert cache.num_free == 8 and not cache.tree.roots
        assert not cache.num_leased and not cache.num_yieldable and not cache.num_evictable
