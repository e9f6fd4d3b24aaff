"""Recomputes all that a cache keeps count of, from scratch, and says where the books are wrong.

It walks everything, some 20 microseconds a node, so it is for tests, and for moments when
nothing runs.
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
_PIECE = 64  # nodes between two pauses
_MAX_PROBLEMS = 50
_MAX_PROBLEM_LEN = 500
_MAX_LINES = 200  # of the picture


class AccountingError(AssertionError):
    """The cache contradicts itself; the message says where, and draws the tree."""


def check(
    cache: RadixCache, private: Iterable[IntArray] = (), leases: Leases | None = None
) -> None:
    """Raise AccountingError unless every counter and link is right.

    `private` are the slots that callers hold in use: all of them, each once. All leases that
    there are must be those of `leases`.
    """
    for _ in checking(cache, private, leases):
        pass


def checking(
    cache: RadixCache, private: Iterable[IntArray] = (), leases: Leases | None = None
) -> Iterator[None]:
    """`check` in pieces of some nodes each; it raises at the end.

    The cache must not change meanwhile, so that a check is given up when there is work to do.
    """
    problems: list[str] = []
    for found in _findings(cache, _joined(private), leases):
        if found is None:
            yield
        elif len(problems) < _MAX_PROBLEMS:
            problems.append(found[:_MAX_PROBLEM_LEN])
    if problems:
        raise AccountingError("\n".join([*problems, picture(cache, _MAX_LINES)]))


def _findings(cache: RadixCache, private: IntArray, leases: Leases | None) -> Iterator[str | None]:
    """What is wrong; None again and again, for a pause."""
    yield from _shape(cache)
    yield from _locks(cache)
    yield from _marks(cache)
    yield from _slots(cache, private)
    yield from _steps(cache)
    yield from _evictables(cache)
    yield from _leases(cache, leases)


def _in_pieces(nodes: Iterable[Node]) -> Iterator[tuple[Node, bool]]:
    """Each node, and whether it is time for a pause."""
    return ((node, number % _PIECE == 0) for number, node in enumerate(nodes, 1))


def _shape(cache: RadixCache) -> Iterator[str | None]:
    """Links, runs and child keys."""
    for namespace, root in cache.tree.roots.items():
        if root.namespace != namespace or root.parent is not None or root.end or len(root.key):
            yield f"the root of {namespace} is not a root: {root} of {root.namespace}"
        if not root.children and not root.lock_count:
            yield f"the root of {namespace} has neither children nor locks"
        for parent, pause in _in_pieces(subtree(root)):
            if pause:
                yield None
            for first, child in parent.children.items():
                if child.parent is not parent or child.start != parent.end or child.is_root:
                    yield f"{child} does not continue its parent {parent}"
                if len(child.key) == 0 or child.key[0] != first:
                    yield f"{child} is filed under id {first}"
                if len(child.key) != len(child.slots):
                    yield f"{child} has {len(child.slots)} slots"
                if child.key.dtype != np.int32 or child.slots.dtype != np.int32:
                    yield f"{child} is not int32"


def _locks(cache: RadixCache) -> Iterator[str | None]:
    """A lock below a child is a lock below its parent, and no child shares it with another."""
    for root in cache.tree.roots.values():
        for node, pause in _in_pieces(subtree(root)):
            if pause:
                yield None
            below = sum(child.lock_count for child in node.children.values())
            if not 0 <= below <= node.lock_count:
                yield f"{below} locks below {node}"
            if node.step is not None and not node.lock_count:
                yield f"promised but not locked: {node}"


def _marks(cache: RadixCache) -> Iterator[str | None]:
    """Who has used a child, or given up a lock on it, has done so with its parent."""
    for root in cache.tree.roots.values():
        for node, pause in _in_pieces(subtree(root)):
            if pause:
                yield None
            children = node.children.values()
            if sum(child.use_count for child in children) > node.use_count:
                yield f"used less often than what is below it: {node}"
            for child in children:
                if child.last_access > node.last_access:
                    yield f"older than what is below it: {node}"
                if child.use_count and child.priority > node.priority:
                    yield f"of a lower priority than what is below it: {node}"


def _slots(cache: RadixCache, private: IntArray) -> Iterator[str | None]:
    """The four sets partition the slots, and the ledger and its counts agree with them."""
    cached: list[IntArray] = []
    for node, pause in _in_pieces(cache.tree.nodes()):
        if pause:
            yield None
        cached.append(node.slots)
    pending = _joined(slots for waiting in cache.pending.values() for slots in waiting)
    held = {
        SlotState.FREE: cache.pool.supply(),
        SlotState.IN_USE: private,
        SlotState.CACHED: _joined(cached),
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


def _steps(cache: RadixCache) -> Iterator[str | None]:
    """Promised nodes are listed under their steps, and nothing waits for a step that is over."""
    promised: dict[int, set[Node]] = {}
    for node, pause in _in_pieces(cache.tree.nodes()):
        if pause:
            yield None
        if node.step is not None:
            promised.setdefault(node.step, set()).add(node)
    if promised != cache.unsettled:
        yield f"promised nodes: found {promised}, listed {cache.unsettled}"
    for step in (*promised, *cache.pending):
        if step <= cache.last_step:
            yield f"something waits for step {step}, which is over"


def _evictables(cache: RadixCache) -> Iterator[str | None]:
    """The eviction structure holds exactly the unlocked leaves."""
    unlocked: list[Node] = []
    for node, pause in _in_pieces(cache.tree.nodes()):
        if pause:
            yield None
        if not node.lock_count:
            unlocked.append(node)
    num_tokens = sum(len(node.key) for node in unlocked)
    if num_tokens != cache.num_evictable:
        yield f"evictable tokens: found {num_tokens}, counted {cache.num_evictable}"
    leaves = {node for node in unlocked if not node.children}
    booked = list(cache.leaves)
    if leaves != set(booked) or not len(leaves) == len(booked) == len(cache.leaves):
        yield f"evictable leaves: found {leaves}, booked {booked}"


def _leases(cache: RadixCache, leases: Leases | None) -> Iterator[str | None]:
    """Each lease counts on its whole path, as a lock as well, and there are no more than may be."""
    ends = [] if leases is None else list(leases)
    counted = Counter(node for end in ends for node in ancestry(end))
    leased = yieldable = 0
    for root in cache.tree.roots.values():
        for node, pause in _in_pieces(subtree(root)):
            if pause:
                yield None
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
