"""Recomputes all that a cache keeps count of, from scratch, and says where the books are wrong.

It walks everything, so it is for tests, and for moments when nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from .cache import RadixCache
from .leases import Leases
from .picture import picture
from .slots import SlotState
from .tree import Node, ancestry, subtree
from .types import IntArray

_NOTHING: IntArray = np.empty(0, dtype=np.int32)


class AccountingError(AssertionError):
    """The cache contradicts itself; the message says where, and draws the tree."""


def check(
    cache: RadixCache, private: Iterable[IntArray] = (), leases: Leases | None = None
) -> None:
    """Raise AccountingError unless every counter and link is right.

    `private` are the slots that callers hold in use: all of them, each once. All leases that
    there are must be those of `leases`.
    """
    problems = [
        *_shape(cache),
        *_locks(cache),
        *_marks(cache),
        *_slots(cache, _joined(private)),
        *_steps(cache),
        *_evictables(cache),
        *_leases(cache, leases),
    ]
    if problems:
        raise AccountingError("\n".join([*problems, picture(cache)]))


def _shape(cache: RadixCache) -> Iterator[str]:
    """Links, runs and child keys."""
    for namespace, root in cache.tree.roots.items():
        if root.namespace != namespace or root.parent is not None or root.end or len(root.key):
            yield f"the root of {namespace} is not a root: {root} of {root.namespace}"
        if not root.children and not root.lock_count:
            yield f"the root of {namespace} has neither children nor locks"
        for parent in subtree(root):
            for first, child in parent.children.items():
                if child.parent is not parent or child.start != parent.end or child.is_root:
                    yield f"{child} does not continue its parent {parent}"
                if len(child.key) == 0 or child.key[0] != first:
                    yield f"{child} is filed under id {first}"
                if len(child.key) != len(child.slots):
                    yield f"{child} has {len(child.slots)} slots"
                if child.key.dtype != np.int32 or child.slots.dtype != np.int32:
                    yield f"{child} is not int32"


def _locks(cache: RadixCache) -> Iterator[str]:
    """A lock below a child is a lock below its parent, and no child shares it with another."""
    for root in cache.tree.roots.values():
        for node in subtree(root):
            below = sum(child.lock_count for child in node.children.values())
            if not 0 <= below <= node.lock_count:
                yield f"{below} locks below {node}"
            if node.step is not None and not node.lock_count:
                yield f"promised but not locked: {node}"


def _marks(cache: RadixCache) -> Iterator[str]:
    """Who has used a child, or given up a lock on it, has done so with its parent."""
    for root in cache.tree.roots.values():
        for node in subtree(root):
            children = node.children.values()
            if sum(child.use_count for child in children) > node.use_count:
                yield f"used less often than what is below it: {node}"
            for child in children:
                if child.last_access > node.last_access:
                    yield f"older than what is below it: {node}"
                if child.use_count and child.priority > node.priority:
                    yield f"of a lower priority than what is below it: {node}"


def _slots(cache: RadixCache, private: IntArray) -> Iterator[str]:
    """The four sets partition the slots, and the ledger and its counts agree with them."""
    pending = _joined(slots for waiting in cache.pending.values() for slots in waiting)
    held = {
        SlotState.FREE: cache.pool.supply(),
        SlotState.IN_USE: private,
        SlotState.CACHED: _joined(node.slots for node in cache.tree.nodes()),
        SlotState.PENDING: pending,
    }
    for state, slots in held.items():
        if not np.array_equal(np.sort(slots), cache.pool.members(state)):
            yield f"{state.name}: found {np.sort(slots)}, booked {cache.pool.members(state)}"
        if len(slots) != cache.pool.count(state):
            yield f"{state.name}: found {len(slots)}, counted {cache.pool.count(state)}"
    everything = np.sort(_joined(held.values()))
    if not np.array_equal(everything, np.arange(cache.num_slots)):
        yield f"free, in use, cached and pending slots do not make up the pool: {everything}"


def _steps(cache: RadixCache) -> Iterator[str]:
    """Promised nodes are listed under their steps, and nothing waits for a step that is over."""
    promised: dict[int, set[Node]] = {}
    for node in cache.tree.nodes():
        if node.step is not None:
            promised.setdefault(node.step, set()).add(node)
    if promised != cache.unsettled:
        yield f"promised nodes: found {promised}, listed {cache.unsettled}"
    for step in (*promised, *cache.pending):
        if step <= cache.last_step:
            yield f"something waits for step {step}, which is over"


def _evictables(cache: RadixCache) -> Iterator[str]:
    """The eviction structure holds exactly the unlocked leaves."""
    unlocked = [node for node in cache.tree.nodes() if not node.lock_count]
    num_tokens = sum(len(node.key) for node in unlocked)
    if num_tokens != cache.num_evictable:
        yield f"evictable tokens: found {num_tokens}, counted {cache.num_evictable}"
    leaves = {node for node in unlocked if not node.children}
    booked = list(cache.leaves)
    if leaves != set(booked) or not len(leaves) == len(booked) == len(cache.leaves):
        yield f"evictable leaves: found {leaves}, booked {booked}"


def _leases(cache: RadixCache, leases: Leases | None) -> Iterator[str]:
    """Each lease counts on its whole path, as a lock as well, and there are no more than may be."""
    ends = [] if leases is None else list(leases)
    counted = Counter(node for end in ends for node in ancestry(end))
    leased = yieldable = 0
    for root in cache.tree.roots.values():
        for node in subtree(root):
            if node.lease_count != counted[node] or node.lease_count > node.lock_count:
                yield f"{counted[node]} leases found, {node.lease_count} counted: {node}"
            leased += len(node.key) if node.lease_count else 0
            yieldable += len(node.key) if 0 < node.lease_count == node.lock_count else 0
    for end in ends:
        if not cache.tree.holds(end):
            yield f"leased, but not in the tree: {end}"
    if leased != cache.num_leased:
        yield f"leased tokens: found {leased}, counted {cache.num_leased}"
    if yieldable != cache.num_yieldable:
        yield f"yieldable tokens: found {yieldable}, counted {cache.num_yieldable}"
    if leases is not None and leased > leases.max_tokens:
        yield f"leased tokens: {leased}, but {leases.max_tokens} at most"


def _joined(arrays: Iterable[IntArray]) -> IntArray:
    return np.concatenate([_NOTHING, *arrays])
