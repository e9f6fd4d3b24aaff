"""Events of random lives of a cache, applied by followers: they must know the tree exactly."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis.stateful import invariant, rule

from espalier.radix.cache import RadixCache
from espalier.radix.types import Namespace
from espalier.runtime.ipc.to_subscribers import WIRE, EventBatch
from espalier.runtime.messages import SchedulingHints
from espalier.runtime.scheduler.control import SendSnapshot
from espalier.runtime.scheduler.tree_journal import TreeJournal
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness
from tests.kv_followers import Follower
from tests.radix.test_cache_machine import CacheMachine
from tests.runtime.test_scheduler_faults import FailingRunner, prompt

EPOCH = 2**63 - 1
CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


class JournalMachine(CacheMachine):
    """One follower gets everything; another misses some batches and asks for a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = TreeJournal(EPOCH, self._send)
        self.cache.observe(self.journal)
        self.steady = Follower(self._no_gap)
        self.lossy = Follower(self._want_snapshot)
        self.wants_snapshot = False
        self.is_cut_off = False
        self.num_batches = 0
        self.journal.publish_all(self.cache.tree)

    def _send(self, batch: EventBatch) -> None:
        batch = WIRE.decode(WIRE.encode(batch))
        self.num_batches += 1
        self.steady.take(batch)
        if not self.is_cut_off:
            self.lossy.take(batch)

    def _no_gap(self) -> None:
        raise AssertionError("the sequence has a gap")

    def _want_snapshot(self) -> None:
        self.wants_snapshot = True

    @rule()
    def cut_off(self) -> None:
        self.is_cut_off = True

    @rule()
    def reconnect(self) -> None:
        self.is_cut_off = False

    @invariant()
    def followers_know_the_tree(self) -> None:
        self.journal.publish()
        tokens = self.oracle.tokens.keys()
        assert self.steady.tokens() == tokens
        if self.wants_snapshot:
            self.wants_snapshot = False
            assert not self.lossy.in_sync
            self.journal.publish_all(self.cache.tree)
            assert self.steady.tokens() == tokens
            assert self.lossy.in_sync is not self.is_cut_off
        if not self.is_cut_off and self.lossy.in_sync:
            before = self.num_batches
            self.journal.publish()
            assert self.num_batches == before, "nothing has happened"
            self._compare_unless_behind()

    def _compare_unless_behind(self) -> None:
        """Who was cut off does not know of what it has missed until the next batch comes."""
        if self.lossy.expected == self.steady.expected:
            assert self.lossy.tokens() == self.oracle.tokens.keys()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def cached(cache: RadixCache) -> set[tuple[Namespace, tuple[int, ...]]]:
    """The same by a walk of the tree."""
    spelt: dict[int, tuple[int, ...]] = {}
    found: set[tuple[Namespace, tuple[int, ...]]] = set()
    for namespace, root in cache.tree.roots.items():
        stack = list(root.children.values())
        while stack:
            node = stack.pop()
            above = spelt.get(id(node.parent), ())
            spelt[id(node)] = ids = above + tuple(node.key.tolist())
            found |= {(namespace, ids[:end]) for end in range(node.start + 1, node.end + 1)}
            stack += node.children.values()
    return found


def test_a_scheduler_tells_of_every_step_also_of_failed_ones() -> None:
    follower = Follower(lambda: None)
    journal = TreeJournal(EPOCH, follower.take)
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), pool_tokens=120, journal=journal)
    harness.wrap_runner(FailingRunner(harness.runner, at=9))
    harness.scheduler.inbox.put(SendSnapshot())
    harness.step()
    assert follower.in_sync, "an idle scheduler sends a snapshot"
    for salt in (0, 0, 40, 80, 0):
        hints = SchedulingHints(lease_s=5.0)
        harness.submit(prompt(50, salt=salt), max_new_tokens=8, hints=hints)
        for _ in range(3):
            harness.step()
            assert follower.tokens() == cached(harness.cache)
    while harness.step():
        assert follower.tokens() == cached(harness.cache)
    assert harness.scheduler.stats.num_failed_steps == 1 and harness.cache.num_evicted > 0
    assert len(follower.tokens()) == harness.cache.num_cached > 0
    harness.close()


def test_a_promise_is_told_with_the_step_that_makes_it() -> None:
    follower = Follower(lambda: None)
    journal = TreeJournal(EPOCH, follower.take)
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), journal=journal)
    harness.scheduler.inbox.put(SendSnapshot())
    harness.submit(prompt(50), max_new_tokens=8, namespace=("a", "b"))
    harness.step()
    assert len(follower.tokens()) == 50 and {ns for ns, _ in follower.tokens()} == {("a", "b")}
    harness.close()


def test_the_wire_is_what_the_documentation_says() -> None:
    sent: list[bytes] = []
    journal = TreeJournal(7, lambda batch: sent.append(WIRE.encode(batch)))
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), journal=journal)
    harness.submit([1, 2, 3], max_new_tokens=1)
    harness.run()
    assert msgspec.msgpack.decode(sent[0]) == {
        "type": "EventBatch",
        "epoch": 7,
        "first_sequence": 0,
        "events": [
            {
                "type": "Stored",
                "run": 0,
                "parent": None,
                "start": 0,
                "ids": b"\1\0\0\0\2\0\0\0\3\0\0\0",
                "namespace": [],
            }
        ],
    }
    harness.close()
