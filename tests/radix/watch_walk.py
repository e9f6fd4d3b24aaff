"""Recomputes all that a PrefixWatch keeps, from the sequences and the tree alone."""

from __future__ import annotations

from collections.abc import Iterator

from espalier.radix.tree import RadixTree
from espalier.radix.watch import PrefixWatch, Watched
from espalier.radix.watch_branch import Branch, Place


def walk(watch: PrefixWatch, tree: RadixTree) -> int:
    """Assert that every branch is as its docstring says; returns how many there are."""
    num_branches = 0
    deepest: dict[Place, Branch] = {}
    ranking: list[tuple[tuple[int, int], Branch]] = []
    for namespace, root in watch.roots.items():
        assert root.parent is None and root.place == namespace and root.end == 0
        for branch in _below(root):
            num_branches += 1
            _check_shape(branch)
            _check_held(branch, namespace, tree)
            _check_waiting(branch)
            place = branch.place
            if place is not None:
                other = deepest.get(place)
                deepest[place] = branch if other is None or other.held < branch.held else other
            if place is not None and branch.waiting:
                ranking.append(((-branch.held, branch.waiting[0][0]), branch))
    assert watch.deepest == deepest
    assert watch.ranking == sorted(ranking, key=lambda ranked: ranked[0])
    assert all(branch.rank == rank for rank, branch in ranking)
    return num_branches


def _below(root: Branch) -> Iterator[Branch]:
    stack = [root]
    while stack:
        branch = stack.pop()
        yield branch
        stack += branch.children.values()


def _check_shape(branch: Branch) -> None:
    """It spells what its children begin with, and without anybody or a fork it would be gone."""
    for first, child in branch.children.items():
        assert child.parent is branch and child.start == branch.end < child.end <= len(child.ids)
        assert child.ids[: branch.end].tolist() == branch.ids[: branch.end].tolist()
        assert int(child.ids[child.start]) == first
    num_ways = branch.num_ending + len(branch.children)
    assert num_ways >= (1 if branch.parent is None else min(2, 2 - branch.num_ending))


def _check_held(branch: Branch, namespace: tuple[str, ...], tree: RadixTree) -> None:
    point = tree.descend(tree.origin(namespace), branch.ids[: branch.end])
    if branch.parent is not None and point.length <= branch.start:
        assert branch.place is None and branch.held == branch.start and branch.rank is None
        return
    assert branch.held == point.length
    if branch.parent is not None:
        at = tree.locate(point).node
        assert branch.place is at


def _check_waiting(branch: Branch) -> None:
    orders = [order for order, _ in branch.waiting]
    assert orders == sorted(set(orders))
    parts = [part for _, part in branch.waiting]
    assert sum(isinstance(part, Watched) for part in parts) == branch.num_ending
    unreached = [child for child in branch.children.values() if child.place is None]
    assert {id(part) for part in parts if isinstance(part, Branch)} == set(map(id, unreached))
    for order, part in branch.waiting:
        if isinstance(part, Branch):
            assert part.waiting[0][0] == order
        else:
            assert part.order == order and part.branch is branch
            assert part.ids.tolist() == branch.ids[: branch.end].tolist()
