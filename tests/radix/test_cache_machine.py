"""Random lives of requests on a small cache, against a dictionary of prefixes.

Holders act as the scheduler does: they match, lock, take slots, promise, insert, and go back
to a sound ancestor when a step fails. Few ids, so that prefixes collide; few slots, so that
every allocation evicts. Others only wait, and are watched. After each rule the whole tree must
equal the oracle, token by token and slot by slot, and every counter must survive a recount.
So with each eviction strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.check import check
from espalier.radix.eviction import LFU, LRU, EvictionStrategy, PriorityFirst, SizeAware
from espalier.radix.leases import Leases
from espalier.radix.picture import picture
from espalier.radix.tree import Node, ancestry, subtree
from espalier.radix.types import IntArray, Namespace
from espalier.radix.watch import PrefixWatch, Watched
from tests.radix import oracle as oracles
from tests.radix.oracle import Oracle, Prefix, Ranking, Token

NUM_SLOTS = 14
MAX_HOLDERS = 6
MAX_IN_FLIGHT = 2
MAX_WATCHED = 8
MAX_LEASED = 8

namespaces = st.sampled_from([(), ("ab", "c"), ("a", "bc")])
runs = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
picks = st.integers(0, 10**6)
priorities = st.none() | st.integers(-2, 2)
"""None: the holder leaves without having used its path."""


def array(ids: Prefix) -> IntArray:
    return np.array(ids, dtype=np.int32)


@dataclass(eq=False)
class Holder:
    """A request, as far as the cache can see one."""

    namespace: Namespace
    prefix: Prefix
    handle: Handle
    private: IntArray
    last_promise: int | None = None
    """The newest step that fills something for this holder."""


class CacheMachine(RuleBasedStateMachine):
    eviction: ClassVar[tuple[EvictionStrategy, Ranking]] = (LRU(), oracles.lru)
    """The cache's strategy, and the oracle's idea of it."""
    cache_type: ClassVar[type[RadixCache]] = RadixCache

    def __init__(self) -> None:
        super().__init__()
        strategy, ranking = self.eviction
        self.cache = self.cache_type(NUM_SLOTS, strategy=strategy)
        self.oracle = Oracle(ranking)
        self.watch = PrefixWatch(self.cache.tree)
        self.cache.observe(self.watch)
        self.now = 0.0
        self.leases = Leases(self.cache, max_tokens=MAX_LEASED, now=lambda: self.now)
        self.watched: list[tuple[Namespace, Prefix, Watched]] = []
        self.holders: list[Holder] = []
        self.loose: list[tuple[Namespace, Prefix, Handle]] = []
        """Matched and not locked: good until something is evicted or withdrawn."""
        self.in_flight: list[int] = []
        self.pending: list[tuple[int, int]] = []
        self.num_steps = 0
        self.num_evicted = 0
        self.num_leases = 0

    def holder(self, pick: int) -> Holder:
        return self.holders[pick % len(self.holders)]

    def after(self, pick: int) -> int | None:
        """No step at all, the one that ended last, or one in flight."""
        last = self.num_steps - len(self.in_flight) - 1
        choices: list[int | None] = [None, last, *self.in_flight]
        return choices[pick % len(choices)]

    def note_release(self, n: int, after: int | None) -> None:
        if after is not None and after in self.in_flight:
            self.pending.append((after, n))

    @rule(namespace=namespaces, ids=runs, cut=st.integers(0, 6), cap=st.none() | st.integers(0, 6))
    def match(self, namespace: Namespace, ids: Prefix, cut: int, cap: int | None) -> None:
        before = picture(self.cache)
        handle = self.cache.match_prefix(namespace, array(ids), cap)
        assert handle.length == self.oracle.match_len(namespace, ids[:cap])
        slots = self.oracle.slots(namespace, ids[: handle.length])
        assert self.cache.slots_of(handle).tolist() == slots
        start = min(cut, handle.length)
        assert self.cache.slots_of(handle, start).tolist() == slots[start:]
        self.loose.append((namespace, ids[: handle.length], handle))
        part = self.cache.match_prefix(namespace, array(ids[:start]))
        assert self.cache.extend_match(part, array(ids[start:cap])).length == handle.length
        assert picture(self.cache) == before

    @initialize(first=runs, second=runs, third=runs)
    def arrive(self, first: Prefix, second: Prefix, third: Prefix) -> None:
        """Begin with something in the tree and a few holders: most rules need both."""
        for ids in (first, second, third):
            self._lock((), ids)
            self.insert(len(self.holders) - 1, ids, 0)

    @precondition(lambda self: len(self.holders) < MAX_HOLDERS)
    @rule(namespace=namespaces, ids=runs)
    def lock(self, namespace: Namespace, ids: Prefix) -> None:
        self._lock(namespace, ids)

    @precondition(lambda self: self.oracle.tokens and len(self.holders) < MAX_HOLDERS)
    @rule(pick=picks)
    def lock_known(self, pick: int) -> None:
        """Lock where the tree has something, in the middle of a run more often than not."""
        keys = sorted(self.oracle.tokens)
        self._lock(*keys[pick % len(keys)])

    @precondition(lambda self: self.loose and len(self.holders) < MAX_HOLDERS)
    @rule(pick=picks)
    def lock_loose(self, pick: int) -> None:
        """Lock a handle whose node may have been split since it was matched."""
        self._hold(*self.loose[pick % len(self.loose)])

    def _lock(self, namespace: Namespace, ids: Prefix) -> None:
        handle = self.cache.match_prefix(namespace, array(ids))
        self._hold(namespace, ids[: self.oracle.match_len(namespace, ids)], handle)

    def _hold(self, namespace: Namespace, prefix: Prefix, handle: Handle) -> None:
        handle = self.cache.lock(handle)
        self.oracle.lock(namespace, prefix)
        private = np.empty(0, dtype=np.int32)
        self.holders.append(Holder(namespace, prefix, handle, private))

    @precondition(lambda self: len(self.watched) < MAX_WATCHED)
    @rule(namespace=namespaces, ids=runs, order=st.integers(0, 99))
    def begin_to_watch(self, namespace: Namespace, ids: Prefix, order: int) -> None:
        if all(watched.order != order for _, _, watched in self.watched):
            self.watched.append((namespace, ids, self.watch.add(order, namespace, array(ids))))

    @precondition(lambda self: self.watched)
    @rule(pick=picks)
    def watch_no_longer(self, pick: int) -> None:
        _, _, watched = self.watched.pop(pick % len(self.watched))
        self.watch.remove(watched)

    @rule(pick=picks, ids=runs)
    def deepen(self, pick: int, ids: Prefix) -> None:
        """Match again, further on, as a request does before each chunk."""
        self._deepen(self.holder(pick), ids)

    def _deepen(self, holder: Holder, ids: Prefix) -> int:
        old, before = holder.handle, holder.prefix
        deeper = self.cache.extend_match(old, array(ids))
        found = self.oracle.match_len(holder.namespace, before + ids)
        assert deeper.length == found
        holder.handle = self.cache.lock(deeper)
        self.cache.unlock(old)
        holder.prefix = (before + ids)[:found]
        self.oracle.lock(holder.namespace, holder.prefix)
        self.oracle.unlock(holder.namespace, before)
        return found - len(before)

    @precondition(lambda self: len(self.holders) > 1)
    @rule(pick=picks, after_pick=picks, priority=priorities)
    def unlock(self, pick: int, after_pick: int, priority: int | None) -> None:
        """Leave, unless a step in flight still fills what this holder promised."""
        holder, after = self.holder(pick), self.after(after_pick)
        if holder.last_promise in self.in_flight:
            return
        self.holders.remove(holder)
        self.cache.release(holder.private, after_step=after)
        self.note_release(len(holder.private), after)
        if priority is not None:
            self._note_use(holder, priority)
        self.cache.unlock(holder.handle)
        self.oracle.unlock(holder.namespace, holder.prefix)

    @precondition(lambda self: self.holders)
    @rule(pick=picks, priority=st.integers(-2, 2))
    def note_use(self, pick: int, priority: int) -> None:
        self._note_use(self.holder(pick), priority)

    def _note_use(self, holder: Holder, priority: int) -> None:
        self.cache.note_use(holder.handle, priority)
        self.oracle.note_use(holder.namespace, holder.prefix, priority)

    @rule(pick=picks)
    def lease(self, pick: int) -> None:
        """Whoever leaves may have its path kept for a time. No two leases expire at once."""
        holder = self.holder(pick)
        self.num_leases += 1
        duration = (pick * 7 % 50) + 1 - self.num_leases / 1000
        granted = self.oracle.take_lease(
            holder.namespace, holder.prefix, self.now + duration, MAX_LEASED
        )
        assert self.leases.take(holder.handle, duration) == granted

    @precondition(lambda self: self.oracle.leases)
    @rule(passed=st.integers(0, 20))
    def expire(self, passed: int) -> None:
        self.now += passed
        self.leases.expire()
        self.oracle.expire(self.now)

    @precondition(lambda self: self.oracle.leases)
    @rule(n=st.integers(0, 16))
    def make_room(self, n: int) -> None:
        within_reach = n <= self.cache.num_available + self.cache.num_yieldable
        self.oracle.make_room(n - self.cache.num_free)
        self.leases.make_room(n)
        assert (self.cache.num_available >= n) == within_reach

    @rule(pick=picks, n=st.integers(0, 8))
    def alloc(self, pick: int, n: int) -> None:
        self._alloc(self.holder(pick), n)

    def _alloc(self, holder: Holder, n: int) -> None:
        num_free, available = self.cache.num_free, self.cache.num_available
        assert available == num_free + self.oracle.num_evictable()
        slots = self.cache.alloc(n)
        assert (slots is None) == (n > available)
        if slots is not None:
            self._evict(max(n - num_free, 0))
            holder.private = np.concatenate([holder.private, slots])

    @precondition(lambda self: len(self.in_flight) < MAX_IN_FLIGHT)
    @rule()
    def launch(self) -> None:
        self.in_flight.append(self.num_steps)
        self.num_steps += 1

    @rule(pick=picks, ids=runs, launch=st.booleans())
    def promise(self, pick: int, ids: Prefix, launch: bool) -> None:
        """Match as far as the tree goes, then promise the rest, or what there are slots for."""
        if not self.in_flight or (launch and len(self.in_flight) < MAX_IN_FLIGHT):
            self.launch()
        holder, step = self.holder(pick), self.in_flight[-1]
        rest = ids[self._deepen(holder, ids) :]
        self._alloc(holder, max(len(rest) - len(holder.private), 0))
        rest = rest[: len(holder.private)]
        if not rest:
            return
        slots, holder.private = holder.private[: len(rest)], holder.private[len(rest) :]
        holder.handle = self.cache.promise(holder.handle, array(rest), slots, step=step)
        holder.last_promise = step
        self._grow(holder, rest, slots, step)

    @rule(pick=picks, ids=runs, after_pick=picks)
    def insert(self, pick: int, ids: Prefix, after_pick: int) -> None:
        holder, after = self.holder(pick), self.after(after_pick)
        self._alloc(holder, max(len(ids) - len(holder.private), 0))
        ids = ids[: len(holder.private)]
        slots, holder.private = holder.private[: len(ids)], holder.private[len(ids) :]
        holder.handle = self.cache.insert(holder.handle, array(ids), slots, after_step=after)
        self.note_release(self._grow(holder, ids, slots, None), after)

    def _grow(self, holder: Holder, ids: Prefix, slots: IntArray, step: int | None) -> int:
        spare = self.oracle.grow(holder.namespace, holder.prefix, ids, slots.tolist(), step=step)
        holder.prefix += ids
        return len(spare)

    @precondition(lambda self: len(self.holders) < MAX_HOLDERS)
    @rule(namespace=namespaces, ids=runs, priority=priorities)
    def complete(self, namespace: Namespace, ids: Prefix, priority: int | None) -> None:
        """A whole request in one go: what it leaves behind is there to be matched or evicted."""
        self._lock(namespace, ids)
        pick = len(self.holders) - 1
        self.insert(pick, ids[len(self.holders[pick].prefix) :], 0)
        self.unlock(pick, 0, priority)

    @rule(pick=picks, n=st.integers(0, 8), after_pick=picks)
    def release(self, pick: int, n: int, after_pick: int) -> None:
        holder, after = self.holder(pick), self.after(after_pick)
        slots, holder.private = holder.private[:n], holder.private[n:]
        self.cache.release(slots, after_step=after)
        self.note_release(len(slots), after)

    @precondition(lambda self: self.in_flight)
    @rule()
    def settle(self) -> None:
        step = self.in_flight.pop(0)
        self.cache.settle(step)
        self.oracle.settle(step)
        self.pending = [(waited, n) for waited, n in self.pending if waited > step]

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self) -> None:
        """The oldest step in flight fails; its successor is drained and goes with it."""
        newest = self.in_flight[-1]
        self.in_flight.clear()
        self.pending.clear()
        self._go_back(lambda node: node.step is not None, lambda token: token.step is not None)
        expected = self.oracle.withdraw(lambda token: token.step is not None)
        assert self.cache.fail(newest) == expected

    @precondition(lambda self: self.oracle.tokens)
    @rule(victims=st.lists(st.tuples(picks, st.integers(0, 3)), min_size=1, max_size=2))
    def poison(self, victims: list[tuple[int, int]]) -> None:
        """Paths turn out worthless, from some node on; steps in flight are drained first."""
        while self.in_flight:
            self.settle()
        keys = sorted(self.oracle.tokens)
        nodes: set[Node] = set()
        tokens: set[Token] = set()
        for pick, num_sound in victims:
            namespace, prefix = keys[pick % len(keys)]
            end = self.cache.match_prefix(namespace, array(prefix)).node
            path = [node for node in ancestry(end) if not node.is_root][::-1]
            poisoned = path[min(num_sound, len(path) - 1) :]
            nodes.update(poisoned)
            tokens.update(self.oracle.path(namespace, prefix)[poisoned[0].start :])
        self._go_back(nodes.__contains__, tokens.__contains__)
        expected = self.oracle.withdraw(tokens.__contains__)
        assert self.cache.withdraw(nodes.__contains__) == expected

    def _go_back(
        self, doomed: Callable[[Node], bool], doomed_token: Callable[[Token], bool]
    ) -> None:
        """Move every holder that stands on doomed ground, and release what it held beyond."""
        self.loose.clear()
        self.leases.roll_back(doomed)
        self.oracle.roll_back_leases(doomed_token)
        for holder in self.holders:
            anchor = self.cache.sound_ancestor(holder.handle, doomed)
            sound = self.oracle.sound_len(holder.namespace, holder.prefix, doomed_token)
            assert anchor.length == sound
            if sound == len(holder.prefix):
                continue
            old, before = holder.handle, holder.prefix
            holder.handle, holder.prefix = self.cache.lock(anchor), before[:sound]
            self.cache.unlock(old)
            self.oracle.lock(holder.namespace, holder.prefix)
            self.oracle.unlock(holder.namespace, before)
            self.cache.release(holder.private, after_step=None)
            holder.private = holder.private[:0]

    @precondition(lambda self: self.cache.num_evictable >= 6)
    @rule()
    def flush(self) -> None:
        evictable = self.oracle.num_evictable()
        assert self.cache.flush() == evictable
        self._evict(evictable)

    def _evict(self, n: int) -> None:
        self.num_evicted += n
        self.oracle.evict(n)
        if n:
            self.loose.clear()

    @invariant()
    def the_tree_equals_the_oracle(self) -> None:
        found: dict[oracles.Key, Token] = {}
        for namespace, root in self.cache.tree.roots.items():
            for node in subtree(root):
                above = [n.key.tolist() for n in ancestry(node)][::-1]
                spelt = tuple(i for key in above for i in key)
                for i, slot in enumerate(node.slots.tolist()):
                    prefix = spelt[: node.start + i + 1]
                    marks = node.last_access, node.use_count, node.priority
                    found[namespace, prefix] = Token(slot, node.step, *marks)
        tokens = self.oracle.tokens
        assert found.keys() == tokens.keys(), picture(self.cache)
        for key, token in found.items():
            assert astuple(token) == astuple(tokens[key]), (key, token, picture(self.cache))

    @invariant()
    def every_handle_stands_where_its_holder_thinks(self) -> None:
        for holder in self.holders:
            assert holder.handle.length == holder.handle.node.end == len(holder.prefix)
            slots = self.oracle.slots(holder.namespace, holder.prefix)
            assert self.cache.slots_of(holder.handle).tolist() == slots
        for namespace, prefix, handle in self.loose:
            assert self.cache.slots_of(handle).tolist() == self.oracle.slots(namespace, prefix)

    @invariant()
    def what_waits_knows_how_much_the_tree_has_of_it(self) -> None:
        lengths = {w.order: self.oracle.match_len(ns, ids) for ns, ids, w in self.watched}
        assert {w.order: w.length for _, _, w in self.watched} == lengths, picture(self.cache)
        best_first = sorted(lengths, key=lambda order: (-lengths[order], order))
        passed = set[int]()
        for order in best_first:
            best = self.watch.best(passed)
            assert best is not None and best.order == order
            passed.add(order)
        assert self.watch.best(passed) is None

    @invariant()
    def the_books_are_right(self) -> None:
        check(self.cache, [holder.private for holder in self.holders], self.leases)
        assert self.cache.num_leased == len(self.oracle.leased())
        assert self.cache.num_yieldable == len(self.oracle.yieldable())
        expiries = self.oracle.leases.values()
        next_expiry_s = min(expiries) - self.now if expiries else None
        assert self.leases.next_expiry_s == next_expiry_s and len(self.leases) == len(expiries)
        assert self.cache.num_cached == len(self.oracle.tokens)
        assert self.cache.num_evicted == self.num_evicted
        assert self.cache.num_evictable == self.oracle.num_evictable()
        assert self.cache.num_pending == sum(n for _, n in self.pending)

    def teardown(self) -> None:
        """Once everybody has left, every slot is free again."""
        while self.in_flight:
            self.settle()
        for holder in self.holders:
            self.cache.release(holder.private, after_step=None)
            self.cache.unlock(holder.handle)
        self.leases.clear()
        self.cache.flush()
        assert not any(watched.length for _, _, watched in self.watched)
        for _, _, watched in self.watched:
            self.watch.remove(watched)
        assert self.watch.best() is None and not self.watch.roots
        assert self.cache.num_free == NUM_SLOTS and not self.cache.tree.roots
        check(self.cache)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


class LfuMachine(CacheMachine):
    eviction = (LFU(), oracles.lfu)


class SizeAwareMachine(CacheMachine):
    """With costs that differ much and age that counts as much, and no two of one rank."""

    eviction = (
        SizeAware(break_even=math.e, half_life=math.pi),
        oracles.size_aware(math.e, math.pi),
    )


class PriorityMachine(CacheMachine):
    eviction = (PriorityFirst(), oracles.priority)


TestLfuMachine = LfuMachine.TestCase
TestSizeAwareMachine = SizeAwareMachine.TestCase
TestPriorityMachine = PriorityMachine.TestCase
FEWER = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestLfuMachine.settings = TestSizeAwareMachine.settings = TestPriorityMachine.settings = FEWER
