"""How much of each of many waiting sequences the tree holds, kept up as the tree changes.

To match ten thousand sequences before each step would take longer than the step. Here they make
up a tree of their own, of branches. Each is matched once, as far as no other has been; after that
what is kept up is how far the tree holds each branch:

    the tree            what waits              held
    [5 6 7 8]           [5 6 7 8]               4, all of it
      └─ [1 2]            ├─ [1 2 3]            6, in part: 5 6 7 8 1 2 3 waits here
                          ├─ [2]                not reached: waits at its parent
                          └─ [9 9]              the same

A new node reaches the branches that it leads along, and what leaves the tree is no longer held of
the branches it led along. All of them lie on one path, so that a change costs as many operations
as there are branches on that path, however many sequences wait behind them or fork off it.
Nothing here changes the tree.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection

from .core import Handle, Node, RadixTree, common_len
from .types import IntArray, Namespace
from .watch_branch import Branch, Place, Watched

__all__ = ["PrefixWatch", "Watched"]


class PrefixWatch:
    """Follows the tree of a cache that it observes.

    The branches that are held up to some point of one node lie below each other, held up to
    different points of it, for a node spells one way: `deepest` has the last of them. `roots`,
    `deepest` and `ranking` are there for checks to read.
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._watched: dict[int, Watched] = {}
        self.roots: dict[Namespace, Branch] = {}
        self.deepest: dict[Place, Branch] = {}
        self.ranking: list[tuple[tuple[int, int], Branch]] = []
        """Reached branches that sequences wait at: the longest first, then by the first order."""

    def add(self, order: int, namespace: Namespace, ids: IntArray) -> Watched:
        """Watch a sequence until it is removed. `order` is its own, `ids` must not change."""
        above = self._follow(namespace, ids)
        branch = above if above.end == len(ids) else self._grow(above, ids)
        watched = self._watched[order] = Watched(order, ids, branch)
        branch.num_ending += 1
        self._rearrange(branch, watched, None, order)
        return watched

    def remove(self, watched: Watched) -> None:
        del self._watched[watched.order]
        branch = watched.branch
        branch.num_ending -= 1
        self._rearrange(branch, watched, watched.order, None)
        if not branch.num_ending:
            self._prune(branch)

    def best(self, passed: Collection[int] = ()) -> Watched | None:
        """The sequence of which the tree holds most, among equals the first in order.

        Without those whose order is among the `passed` ones.
        """
        best: tuple[int, int] | None = None
        for rank, branch in self.ranking:
            if best is not None and best < rank:
                break
            order = branch.first_beyond(passed)
            if order is not None and (best is None or (rank[0], order) < best):
                best = rank[0], order
        return None if best is None else self._watched[best[1]]

    # -- the tree changes ---------------------------------------------------------------

    def attached(self, node: Node) -> None:
        """Who waits for this node's first id follows it as far as it leads."""
        assert node.parent is not None
        branch, length = self.deepest.get(_place(node.parent)), node.start
        if branch is None or branch.held < length:
            return
        while length < node.end:
            if branch.held == branch.end:
                child = branch.children.get(int(node.key[length - node.start]))
                if child is None or child.place is not None:
                    return  # nobody waits for it
                self._rearrange(branch, child, child.first, None)
                branch = child
            common = common_len(branch.ids[length : branch.end], node.key[length - node.start :])
            if not common:
                return
            length += common
            self._hold(branch, length, node)
            if length < branch.end:
                return

    def split(self, upper: Node, lower: Node) -> None:
        """Branches that are held up to a point in the first part are so in the upper node now."""
        deepest = branch = self.deepest.get(lower)
        if branch is None:
            return
        while branch.held > upper.end:
            branch = branch.above
        if branch is deepest:
            del self.deepest[lower]
        if branch.held > upper.start:
            self.deepest[upper] = branch
        while branch.held > upper.start:
            branch.place = upper
            branch = branch.above

    def trimmed(self, leaf: Node, num_tokens: int) -> None:
        """What is gone is no longer held."""
        self._fall_back(leaf, leaf, leaf.end)

    def detached(self, leaf: Node, parent: Node) -> None:
        """Of what the leaf held nothing is, and the parent holds the rest."""
        self._fall_back(leaf, parent, parent.end)

    def cleared(self) -> None:
        """All is forgotten, the sequences as well: they are watched again if they are added."""
        self._watched.clear()
        self.roots.clear()
        self.deepest.clear()
        self.ranking.clear()

    def _fall_back(self, gone: Node, left: Node, length: int) -> None:
        branch = self.deepest.get(gone)
        while branch is not None and branch.held > length:
            if branch.start < length:
                self._hold(branch, length, _place(left))
                return
            above = branch.above
            self._lose(branch)
            self._rearrange(above, branch, None, branch.first)
            branch = above

    # -- how far the tree holds each branch -------------------------------------------------

    def _hold(self, branch: Branch, length: int, place: Place) -> None:
        """The tree holds a branch up to a point in or at the end of `place`."""
        self._leave(branch)
        branch.held, branch.place = length, place
        deepest = self.deepest.get(place)
        if deepest is None or deepest.held < length:
            self.deepest[place] = branch
        self._rank(branch)

    def _lose(self, branch: Branch) -> None:
        """The tree holds nothing of a branch any more."""
        self._leave(branch)
        branch.held, branch.place = branch.start, None
        self._rank(branch)

    def _leave(self, branch: Branch) -> None:
        place = branch.place
        if place is not None and self.deepest[place] is branch:
            if branch.parent is not None and branch.parent.place is place:
                self.deepest[place] = branch.parent
            else:
                del self.deepest[place]

    def _rearrange(
        self, branch: Branch, part: Watched | Branch, was: int | None, now: int | None
    ) -> None:
        """A part waits at a branch, by `now` instead of `was`; tell those who go by its first."""
        while True:
            first = branch.first
            branch.rearrange(part, was, now)
            if branch.first == first:
                return
            if branch.place is not None:
                self._rank(branch)
                return
            part, was, now, branch = branch, first, branch.first, branch.above

    def _rank(self, branch: Branch) -> None:
        first = branch.first
        rank = None if first is None or branch.place is None else (-branch.held, first)
        if rank == branch.rank:
            return
        if branch.rank is not None:
            del self.ranking[bisect_left(self.ranking, (branch.rank,))]
        if rank is not None:
            insort(self.ranking, (rank, branch))
        branch.rank = rank

    # -- branches come and go --------------------------------------------------------------

    def _follow(self, namespace: Namespace, ids: IntArray) -> Branch:
        """The deepest branch that `ids` pass whole; cut to end where they go their own way."""
        branch, spelt = self.roots.get(namespace) or self._plant(namespace, ids), ids.tobytes()
        while branch.end < len(ids):
            child = branch.children.get(int(ids[branch.end]))
            if child is None:
                return branch
            end = child.agrees_until(ids, spelt)
            if end < child.end:
                return self._cut(child, end)
            branch = child
        return branch

    def _plant(self, namespace: Namespace, ids: IntArray) -> Branch:
        root = self.roots[namespace] = Branch(ids, 0, 0, None, 0)
        self._hold(root, 0, namespace)
        return root

    def _grow(self, above: Branch, ids: IntArray) -> Branch:
        """A new branch for the rest of `ids`: here they are matched, as nobody has been."""
        branch = above.grow(ids)
        if above.place is not None and above.held == above.end:
            point = self._tree.descend(self._point(above), ids[above.end :])
            if point.length > above.end:
                self._hold(branch, point.length, point.node)
        return branch

    def _cut(self, branch: Branch, end: int) -> Branch:
        """Cut a branch in two; what waited at all of it waits at the lower one."""
        above, first, held, place = branch.above, branch.first, branch.held, branch.place
        if held > end:
            assert isinstance(place, Node), branch
            upper = branch.cut(end)
            self._hold(upper, end, self._tree.locate(Handle(place, end)).node)
            return upper
        if place is None:
            above.rearrange(branch, first, None)
        else:
            self._lose(branch)
        upper = branch.cut(end)
        upper.rearrange(branch, None, first)
        if place is None:
            above.rearrange(upper, None, first)
        else:
            self._hold(upper, held, place)
        return upper

    def _prune(self, branch: Branch) -> None:
        """No sequence ends at this branch any more: it lasts only if others fork off here."""
        above = branch.parent
        if above is None:
            if not branch.children:
                assert isinstance(branch.place, tuple), branch
                del self.roots[branch.place]
                self._lose(branch)
        elif not branch.children:
            self._lose(branch)
            branch.drop()
            if not above.num_ending:
                self._prune(above)
        elif len(branch.children) == 1:
            self._join(branch)

    def _join(self, branch: Branch) -> None:
        """Make one of a branch and its only child."""
        above, first, held, place = branch.above, branch.first, branch.held, branch.place
        (child,) = branch.children.values()
        if place is None:
            above.rearrange(branch, first, None)
        else:
            self._lose(branch)
        child.absorb_parent()
        if place is None:
            above.rearrange(child, None, first)
        elif child.place is None:
            self._hold(child, held, place)

    def _point(self, branch: Branch) -> Handle:
        """Where the tree ends holding a branch that it has reached."""
        place = branch.place
        assert place is not None, branch
        return Handle(place, branch.held) if isinstance(place, Node) else self._tree.origin(place)


def _place(node: Node) -> Place:
    return node if node.namespace is None else node.namespace
