"""Walking, splitting, trimming: the tree's shape without locks or memory."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.radix.tree import (
    Handle,
    Node,
    RadixTree,
    ancestry,
    attach,
    common_len,
    detach,
    split,
    subtree,
    trim,
)
from espalier.radix.types import IntArray


def run(*ids: int) -> IntArray:
    return np.array(ids, dtype=np.int32)


def planted(namespace: tuple[str, ...] = ()) -> tuple[RadixTree, Node]:
    tree = RadixTree()
    return tree, tree.plant(tree.origin(namespace).node)


def grow(parent: Node, *ids: int) -> Node:
    """A child whose slot numbers are its ids plus 100."""
    node = Node(key=run(*ids), slots=run(*ids) + 100, parent=parent, end=parent.end + len(ids))
    attach(node)
    return node


short_runs = st.lists(st.integers(0, 2), max_size=6)


@given(short_runs, short_runs)
def test_common_len_is_that_of_the_common_prefix(a: list[int], b: list[int]) -> None:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    assert common_len(run(*a), run(*b)) == n


def test_descend_ends_inside_a_run_at_its_end_or_at_a_fork() -> None:
    tree, root = planted()
    upper = grow(root, 5, 6, 7)
    lower = grow(upper, 1, 2)
    origin = tree.origin(())
    assert tree.descend(origin, run()) == Handle(root, 0)
    assert tree.descend(origin, run(9, 6)) == Handle(root, 0)
    assert tree.descend(origin, run(5, 6)) == Handle(upper, 2)
    assert tree.descend(origin, run(5, 6, 9, 1)) == Handle(upper, 2)
    assert tree.descend(origin, run(5, 6, 7)) == Handle(upper, 3)
    assert tree.descend(origin, run(5, 6, 7, 3)) == Handle(upper, 3)
    assert tree.descend(origin, run(5, 6, 7, 1, 9)) == Handle(lower, 4)
    assert tree.descend(origin, run(5, 6, 7, 1, 2, 3)) == Handle(lower, 5)


def test_descend_goes_on_from_inside_a_run() -> None:
    tree, root = planted()
    upper = grow(root, 5, 6, 7)
    lower = grow(upper, 1, 2)
    assert tree.descend(Handle(upper, 1), run(6, 7, 1)) == Handle(lower, 4)
    assert tree.descend(Handle(upper, 1), run(7)) == Handle(upper, 1)


def test_id_zero_is_an_id_like_any_other() -> None:
    tree, root = planted()
    node = grow(root, 0, 0)
    assert tree.descend(tree.origin(()), run(0, 0, 0)) == Handle(node, 2)


def test_split_keeps_the_node_as_the_lower_half() -> None:
    _, root = planted()
    node = grow(root, 5, 6, 7, 8)
    below = grow(node, 1)
    node.lock_count, node.step = 2, 9
    node.last_access, node.use_count, node.priority = 33, 4, -5
    upper = split(node, 3)
    assert (upper.key.tolist(), node.key.tolist()) == ([5, 6, 7], [8])
    assert (upper.slots.tolist(), node.slots.tolist()) == ([105, 106, 107], [108])
    assert (upper.start, upper.end, node.start, node.end) == (0, 3, 3, 4)
    assert list(ancestry(below)) == [below, node, upper, root]
    assert list(subtree(root)) == [root, upper, node, below]
    for half in (upper, node):
        assert (half.lock_count, half.step) == (2, 9)
        assert (half.last_access, half.use_count, half.priority) == (33, 4, -5)


def test_a_handle_survives_splits_of_its_node() -> None:
    tree, root = planted()
    node = grow(root, 5, 6, 7, 8)
    inside, whole = Handle(node, 2), Handle(node, 4)
    upper = split(node, 3)
    assert tree.locate(inside) == Handle(upper, 2)
    assert tree.locate(whole) == whole
    assert tree.descend(inside, run(7, 8)) == whole
    assert tree.locate(Handle(node, 3)) == Handle(upper, 3)
    assert tree.locate(Handle(node, 0)) == Handle(root, 0)


@pytest.mark.parametrize("length", [0, 4, 5])
def test_a_split_leaves_no_half_empty(length: int) -> None:
    _, root = planted()
    with pytest.raises(AssertionError):
        split(grow(root, 5, 6, 7, 8), length)


def test_trim_drops_the_tail_and_spoils_handles_that_reached_into_it() -> None:
    tree, root = planted()
    node = grow(root, 5, 6, 7, 8)
    assert trim(node, 3).tolist() == [106, 107, 108]
    assert (node.key.tolist(), node.slots.tolist(), node.end) == ([5], [105], 1)
    assert tree.locate(Handle(node, 1)) == Handle(node, 1)
    with pytest.raises(AssertionError, match="trimmed"):
        tree.locate(Handle(node, 2))


def test_nodes_own_their_arrays_so_that_a_small_rest_keeps_no_big_run_alive() -> None:
    _, root = planted()
    node = grow(root, *range(1000))
    upper = split(node, 500)
    trim(node, 499)
    for part in (upper, node):
        for run_of_part in (part.key, part.slots):
            owner = cast("bytes | None", run_of_part.base)
            assert owner is None or len(owner) == run_of_part.nbytes


def test_siblings_never_begin_alike() -> None:
    _, root = planted()
    grow(root, 5, 6)
    with pytest.raises(AssertionError, match="already begins"):
        grow(root, 5, 7)


def test_detached_nodes_are_no_longer_held() -> None:
    tree, root = planted()
    node = grow(root, 5)
    assert tree.holds(node) and tree.holds(root)
    assert detach(node) is root
    assert not tree.holds(node) and not root.children
    tree.uproot(root)
    assert not tree.holds(root) and not tree.roots


def test_an_unknown_namespace_is_planted_once() -> None:
    tree = RadixTree()
    first, second = tree.origin(("t",)), tree.origin(("t",))
    assert not tree.roots
    root = tree.plant(first.node)
    assert tree.plant(second.node) is root
    node = grow(root, 5)
    assert tree.descend(second, run(5, 6)) == Handle(node, 1)


def test_topmost_hides_what_is_chosen_below_the_chosen() -> None:
    tree, root = planted()
    a = grow(root, 1)
    b = grow(a, 2)
    grow(b, 3)
    c = grow(root, 4)
    d = grow(c, 5)
    chosen = {a, b, d}
    assert set(tree.topmost(lambda node: node in chosen)) == {a, d}


def test_a_chain_deeper_than_the_recursion_limit_can_be_walked() -> None:
    tree, root = planted()
    node = root
    for _ in range(3000):
        node = grow(node, 1)
    assert tree.descend(tree.origin(()), np.ones(4000, dtype=np.int32)) == Handle(node, 3000)
    assert sum(1 for _ in tree.nodes()) == 3000
    assert "3000" in repr(node)
