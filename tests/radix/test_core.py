"""The native core by itself: it raises where it is misused, and keeps no memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from espalier.radix import core
from espalier.radix.cache import RadixCache
from espalier.radix.check import check
from espalier.radix.core import Books, Handle, Node, RadixTree, SlotPool, attach, detach
from espalier.radix.eviction import LRU, EvictableLeaves
from espalier.radix.slots import SlotState
from espalier.radix.types import IntArray
from tests.radix.plain import plain

pytest.importorskip("espalier.radix._core")


def run(*ids: int) -> IntArray:
    return np.array(ids, dtype=np.int32)


def take(cache: RadixCache, n: int) -> IntArray:
    slots = cache.alloc(n)
    assert slots is not None
    return slots


def put(cache: RadixCache, ids: IntArray) -> Handle:
    handle = cache.lock(cache.match_prefix((), ids))
    rest = ids[handle.length :]
    return cache.insert(handle, rest, take(cache, len(rest)), after_step=None)


def sample() -> tuple[RadixCache, Handle]:
    """A cache of one locked path, `1 2 3 4` below `1 2`."""
    cache = RadixCache(16)
    cache.unlock(put(cache, run(1, 2)))
    return cache, put(cache, run(1, 2, 3, 4))


STRANGERS: list[Any] = [
    None,
    -1,
    2**40,
    2**70,
    1.5,
    "x",
    b"12345678",
    (),
    ("a",),
    [1, 2],
    {},
    run(),
    run(-1, 2**31 - 1),
    np.zeros(3, np.float32),
    np.zeros(3, np.int64),
    np.zeros((2, 2), np.int32),
    np.int32(3),
    np.array(3, np.int32),
    len,
    object(),
    plain("tree").Node(run(1), run(1), None, 1),
    plain("tree").Handle(None, 1),
]


def methods_of(thing: Any) -> list[Callable[..., Any]]:
    names = [name for name in dir(thing) if not name.startswith("__")]
    return [method for method in (getattr(thing, name) for name in names) if callable(method)]


def victims() -> Iterator[Callable[..., Any]]:
    """Everything native that can be called, on things that are in a good state."""
    cache, handle = sample()
    yield from (getattr(cache, name) for name in vars(Books) if not name.startswith("__"))
    yield from methods_of(cache.tree)
    yield from methods_of(cache.pool)
    yield from (Node, Handle, RadixTree, SlotPool)
    yield from (core.attach, core.detach, core.split, core.trim, core.common_len)
    yield partial(cache.insert, handle, after_step=None)
    yield partial(cache.promise, handle, step=3)
    yield partial(cache.tree.descend, handle)


def test_whatever_it_is_called_with_it_raises_or_works() -> None:
    """Nothing here may crash: reaching the end is what is tested."""
    raised = 0
    for victim in filter(callable, victims()):
        for count in range(4):
            choices = STRANGERS if count < 3 else STRANGERS[::4]
            for values in product(choices, repeat=count):
                try:
                    victim(*values)
                except Exception:
                    raised += 1
    assert raised > 1000


def test_attributes_take_their_own_kinds_only() -> None:
    _, handle = sample()
    node = handle.node
    for name, value in product(("end", "lock_count", "last_used_s", "key", "slots"), STRANGERS):
        before = getattr(node, name)
        try:
            setattr(node, name, value)
        except (TypeError, OverflowError, BufferError, ValueError):
            assert np.array_equal(getattr(node, name), before)
        repr(node)
    above = node.parent
    for value in STRANGERS[1:]:
        with pytest.raises(TypeError, match="a Node"):
            node.parent = value
    assert node.parent is above
    with pytest.raises(AttributeError):
        handle.length = 3  # type: ignore[misc]


def test_what_a_node_refers_to_cannot_make_a_chain() -> None:
    """A chain through anything but parents and children would be let go in depth."""
    _, handle = sample()
    for name, value in product(("step", "ticket", "namespace"), (handle.node, handle, "x")):
        attribute: dict[str, Any] = {name: value}
        with pytest.raises(TypeError, match="or None"):
            setattr(handle.node, name, value)
        with pytest.raises(TypeError, match="or None"):
            Node(run(1), run(1), None, 1, **attribute)


def test_numbers_of_a_cache_stay_as_they_are_when_they_are_refused() -> None:
    cache, _ = sample()
    for name in ("last_step", "_num_evictable"):
        before = getattr(cache, name)
        with pytest.raises(TypeError):
            setattr(cache, name, "x")
        with pytest.raises(OverflowError):
            setattr(cache, name, 2**70)
        assert getattr(cache, name) == before


@pytest.mark.parametrize("start", [0, 2**40, 2**62 + 2**61])
def test_slots_of_a_path_longer_than_all_slots_are_refused(start: int) -> None:
    """Lengths that no vector can have, and differences that overflow."""
    cache, handle = sample()
    upper = handle.node.parent
    assert upper is not None
    for end in (2**40 + 5, 2**62, start + 5):
        handle.node.end, upper.end = end, 2 - 2**62
        with pytest.raises(AssertionError):
            cache.slots_of(Handle(handle.node, end), min(start, end))


def test_slots_of_a_path_with_a_gap_are_refused() -> None:
    cache, handle = sample()
    handle.node.parent = None
    with pytest.raises(AssertionError, match="gap at 2"):
        cache.slots_of(handle)
    assert len(cache.slots_of(handle, 2)) == 2
    handle.node.slots = run(3)
    with pytest.raises(AssertionError, match="1 slots for 2 tokens"):
        cache.slots_of(handle, 2)


def test_a_thing_that_was_never_initialised_says_so() -> None:
    class Unborn(Books):
        def __init__(self) -> None: ...

        def _evict(self, n: int) -> None: ...

    unborn = Unborn()
    for use in (
        lambda: unborn.alloc(1),
        lambda: unborn.match_prefix((), run(1)),
        lambda: unborn.num_free,
    ):
        with pytest.raises(TypeError, match="__init__"):
            use()
    with pytest.raises(AttributeError):
        _ = unborn.tree


def test_a_cache_is_initialised_once() -> None:
    cache, _ = sample()
    with pytest.raises(AssertionError, match="before"):
        Books.__init__(cache, 3, EvictableLeaves(LRU()), lambda: 0.0)


def test_children_of_another_kind_are_refused() -> None:
    cache, handle = sample()
    upper = handle.node.parent
    assert upper is not None
    upper.children[3] = "child"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a Node"):
        cache.match_prefix((), run(1, 2, 3, 4))
    with pytest.raises(TypeError, match="a Node"):
        list(cache.tree.nodes())


def test_slots_that_there_are_not_are_refused() -> None:
    pool = SlotPool(4)
    pool.alloc(4)
    for slot in (-1, 4, 2**31 - 1, -(2**31)):
        with pytest.raises(AssertionError, match="not IN_USE"):
            pool.free(run(0, slot))
    pool.free(run(0, 1, 2, 3))


def test_a_refused_call_moves_no_slot() -> None:
    pool = SlotPool(4)
    pool.alloc(3)
    for wrong in (run(0, 1, 0), run(0, 1, 3)):
        with pytest.raises(AssertionError):
            pool.free(wrong)
    assert [pool.count(state) for state in SlotState] == [1, 3, 0, 0]
    pool.free(run(2, 0, 1))


def test_arrays_with_gaps_are_read_right() -> None:
    cache = RadixCache(16)
    ids = np.arange(20, dtype=np.int32)
    cache.unlock(put(cache, ids[::2]))
    assert cache.match_prefix((), ids[::2].copy()).length == 10
    assert cache.match_prefix((), ids[::-1][1::2]).length == 0
    assert cache.match_prefix((), run(18, 0, 2)[1:]).length == 2
    check(cache)


def test_what_a_node_shows_of_its_run_is_read_only() -> None:
    _, handle = sample()
    with pytest.raises(ValueError, match="read-only"):
        handle.node.key[0] = 9


def test_what_an_observer_raises_goes_to_the_caller() -> None:
    class Grumpy:
        def attached(self, node: Node) -> None:
            raise RuntimeError("not that one")

        def split(self, upper: Node, lower: Node) -> None: ...

        def trimmed(self, leaf: Node, num_tokens: int) -> None: ...

        def detached(self, leaf: Node, parent: Node) -> None: ...

        def cleared(self) -> None: ...

    cache, _ = sample()
    cache.observe(Grumpy())
    with pytest.raises(RuntimeError, match="not that one"):
        put(cache, run(7))


@pytest.mark.parametrize("from_below", [True, False])
def test_a_chain_deeper_than_the_stack_can_be_let_go(from_below: bool) -> None:
    tree = RadixTree()
    top = node = tree.plant(tree.origin(()).node)
    for depth in range(200_000):
        node = Node(run(1), run(depth), node, depth + 1)
        attach(node)
    if from_below:
        while node.parent is not None:
            above = node.parent
            above.children.clear()
            node = above
    del tree, top, node
    gc.collect()


def test_a_chain_of_parents_can_be_let_go() -> None:
    node = Node(run(), run(), None, 0)
    for depth in range(200_000):
        node = Node(run(1), run(depth), node, depth + 1)
    del node
    gc.collect()


def num_nodes() -> int:
    gc.collect()
    return sum(type(thing) is Node for thing in gc.get_objects())


def test_a_cache_that_is_let_go_goes_with_all_its_nodes() -> None:
    before = num_nodes()
    cache, handle = sample()
    assert num_nodes() == before + 3
    del cache
    assert num_nodes() == before + 3, "the handle leads to its whole path"
    del handle
    assert num_nodes() == before


def live(cache: RadixCache, rng: np.random.Generator, num_requests: int, step: int) -> None:
    """Requests that match, promise, insert, lease and leave; some of their steps fail."""
    for number in range(step, step + num_requests):
        ids = rng.integers(0, 3, 12).astype(np.int32)
        handle = cache.lock(cache.match_prefix((str(number % 3),), ids, 10))
        prompt = ids[handle.length : 11]
        handle = cache.promise(handle, prompt, take(cache, len(prompt)), step=number)
        waste = take(cache, 2)
        cache.release(waste, after_step=number)
        if number % 7 == 0:
            anchor = cache.sound_ancestor(handle, lambda node: node.step is not None)
            anchor = cache.lock(anchor)
            cache.unlock(handle)
            cache.fail(number)
            handle = anchor
        else:
            cache.settle(number)
            handle = cache.insert(handle, ids[11:], take(cache, 1), after_step=None)
        cache.note_use(handle)
        cache.end_lease(cache.lease(handle))
        cache.slots_of(handle)
        cache.unlock(handle)
        with pytest.raises(AssertionError):
            cache.unlock(handle)


def test_ten_thousand_requests_leave_memory_as_it_was() -> None:
    cache, rng = RadixCache(64), np.random.default_rng(0)
    live(cache, rng, 1000, 0)
    cache.flush()
    tracemalloc.start()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    live(cache, rng, 10_000, 1000)
    cache.flush()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.num_free == 64
    assert after - before < 10_000, "less than a byte a request"


def test_a_detached_leaf_knows_no_parent() -> None:
    cache, handle = sample()
    above = handle.node.parent
    assert detach(handle.node) is above and handle.node.parent is None
    with pytest.raises(AssertionError, match="not a leaf"):
        detach(handle.node)
    with pytest.raises(AssertionError, match="no longer in the tree"):
        cache.lock(handle)
