"""How much of each of many waiting sequences the tree holds, kept up as the tree changes.

To match ten thousand sequences before each step would take longer than the step. Here each is
matched once; then it waits, in a group with others, at the point of the tree where its match ends:

    [5 6 7 8]───[9]            group (length 4, next id 1): sequences 5 6 7 8 1 ..
        └─ (4, 1)  (4, None)   group (length 4, next id None): all others, 5 6 7 8 3, 5 6 7 8 ..

A node that comes to hang there, beginning with the group's next id, takes the whole group
along, as far as its members are known to agree. There they part: who goes the tree's way goes on,
and the others stay in one group, whatever they want next, until a node comes for some of them.
What leaves the tree lets the groups behind it fall back. So a change costs as many operations as
there are groups at that point, not sequences; where a group parts it costs one look at each
member. Nothing here changes the tree.
"""

from __future__ import annotations

from collections.abc import Collection

from .lazy_heap import LazyHeap
from .tree import Handle, Node, RadixTree
from .types import IntArray, Namespace
from .watch_groups import Group, Place, Watched

__all__ = ["PrefixWatch", "Watched"]

_Spot = tuple[int, int | None]  # tokens from the root, and the next id; None: that differs


class PrefixWatch:
    """Follows the tree of a cache that it observes."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._spots: dict[Place, dict[_Spot, Group]] = {}
        self._order = LazyHeap[Group]()

    def add(self, order: int, namespace: Namespace, ids: IntArray) -> Watched:
        """Watch a sequence until it is removed. `order` is its own, `ids` must not change."""
        watched = Watched(order, ids)
        point = self._tree.descend(self._tree.origin(namespace), ids)
        self._park(Group.of_one(watched, point.length), point.node)
        return watched

    def remove(self, watched: Watched) -> None:
        group = watched.group
        assert group is not None, "not watched"
        if len(group.members) == 1:
            self._unpark(group)
            self._order.discard(group)
        else:
            was_first = group.first is watched
            del group.members[watched.order]
            if was_first:
                self._rank(group)
        watched.group = None

    def best(self, passed: Collection[int] = ()) -> Watched | None:
        """The sequence of which the tree holds most, among equals the first in order.

        Without those whose order is among the `passed` ones.
        """
        best_key, best = None, None
        for first_key, group in self._order.in_order():
            if best_key is not None and best_key <= first_key:
                break
            for watched in group.members.values():
                if watched.order not in passed:
                    key = (-group.length, watched.order)
                    if best_key is None or key < best_key:
                        best_key, best = key, watched
                    break
        return best

    # -- the tree changes ---------------------------------------------------------------

    def attached(self, node: Node) -> None:
        """Who waits for this node's first id follows it as far as it leads."""
        assert node.parent is not None
        spots = self._spots.get(_place(node.parent))
        if not spots:
            return
        next_id = int(node.key[0])
        alike, mixed = spots.get((node.start, next_id)), spots.get((node.start, None))
        if alike is not None:
            self._unpark(alike)
            self._follow(alike, Handle(node, node.start))
        if mixed is not None and (part := mixed.take(next_id)):
            self._unpark(mixed)
            if mixed.members:
                self._park(mixed, node.parent)
            else:
                self._order.discard(mixed)
            self._follow(part, Handle(node, node.start))

    def split(self, upper: Node, lower: Node) -> None:
        """Groups whose match ended in the first part end in the upper node now."""
        spots = self._spots.get(lower)
        if spots is None:
            return
        for spot in [spot for spot in spots if spot[0] <= upper.end]:
            group = spots[spot]
            self._unpark(group)
            self._park(group, upper)

    def trimmed(self, leaf: Node, num_tokens: int) -> None:
        """Groups that had matched what is gone fall back to what is left."""
        spots = self._spots.get(leaf, {})
        self._fall_back([g for g in spots.values() if g.length > leaf.end], leaf, leaf.end)

    def detached(self, leaf: Node, parent: Node) -> None:
        """Groups that had matched the leaf fall back to its parent."""
        self._fall_back(list(self._spots.get(leaf, {}).values()), parent, parent.end)

    def _fall_back(self, groups: list[Group], node: Node, length: int) -> None:
        for group in groups:
            self._unpark(group)
            group.length = length
            self._park(group, node)

    def cleared(self) -> None:
        """All is forgotten, the sequences as well: they are watched again if they are added."""
        self._spots.clear()
        self._order = LazyHeap[Group]()

    # -- groups -------------------------------------------------------------------------

    def _follow(self, group: Group, point: Handle) -> None:
        """Take a group as far down from `point` as the tree leads its members, and park it."""
        moving = [(group, point)]
        while moving:
            group, point = moving.pop()
            point = self._tree.descend(point, group.ids[point.length : group.shared])
            group.length = point.length
            if point.length < group.shared:
                self._park(group, point.node)
                continue
            for part in group.parted():
                if part.shared > part.length:
                    moving.append((part, point))
                    continue
                takers = map(part.take, self._tree.next_ids(point))
                moving += [(taken, point) for taken in takers if taken is not None]
                if part.members:
                    self._park(part, point.node)
                else:
                    self._order.discard(part)

    def _park(self, group: Group, node: Node) -> None:
        """Have a group wait at its length, which is in or at the end of `node`."""
        place = _place(node)
        spots = self._spots.setdefault(place, {})
        other = spots.get(_spot(group))
        if other is not None:
            if len(group.members) <= len(other.members):
                group, other = other, group
            self._order.discard(other)
            group.take_in(other)
        group.place = place
        spots[_spot(group)] = group
        self._rank(group)

    def _rank(self, group: Group) -> None:
        self._order.put(group, (-group.length, group.first.order))

    def _unpark(self, group: Group) -> None:
        spots = self._spots[group.place]
        del spots[_spot(group)]
        if not spots:
            del self._spots[group.place]


def _spot(group: Group) -> _Spot:
    return group.length, group.next_id


def _place(node: Node) -> Place:
    return node if node.namespace is None else node.namespace
