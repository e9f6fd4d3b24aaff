"""How much of each of many waiting sequences the tree holds, kept up as the tree changes.

To match ten thousand sequences before each step would take longer than the step. Here each is
matched once; then it waits, in a group with all that want the same token next, at the point of
the tree where its match ends:

    [5 6 7 8]───[9]            group (length 4, next id 1): sequences 5 6 7 8 1 ..
        └─ (4, 1)  (4, 3)      group (length 4, next id 3): sequences 5 6 7 8 3 ..

A node that comes to hang there, beginning with the group's next id, takes the whole group
along, as far as its members are known to agree; there it falls apart by their next ids. What
leaves the tree lets the groups behind it fall back. So a change costs as many operations as
there are groups at that point, not sequences. Nothing here changes the tree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .lazy_heap import LazyHeap
from .tree import Handle, Node, RadixTree, common_len
from .types import IntArray, Namespace

_Place = Node | Namespace  # a node, or, as an idle root is forgotten, the namespace of a root
_Spot = tuple[int, int | None]  # tokens from the root, and the next id; None: nothing is wanted


@dataclass(eq=False, slots=True)
class Watched:
    """One sequence. `order` tells sequences apart, and those of equal length go by it."""

    order: int
    ids: IntArray
    """All that may be matched: the match ends at `len(ids)` at most."""
    group: _Group | None = None

    @property
    def length(self) -> int:
        """How many of the ids the tree holds now, settled or promised."""
        assert self.group is not None
        return self.group.length


@dataclass(eq=False, slots=True)
class _Group:
    """Sequences that agree in their first `shared` ids, of which the tree holds `length`.

    They agree in the next id as well, or all end there.
    """

    length: int
    shared: int
    members: dict[int, Watched]  # by order, ascending; not empty
    place: _Place = ()

    def __post_init__(self) -> None:
        for watched in self.members.values():
            watched.group = self

    @property
    def first(self) -> Watched:
        return next(iter(self.members.values()))

    @property
    def wants_nothing(self) -> bool:
        """The tree holds all of its members."""
        return self.length == len(self.first.ids)

    @property
    def spot(self) -> _Spot:
        return self.length, None if self.wants_nothing else int(self.first.ids[self.length])

    def parted(self) -> list[_Group]:
        """The members by their next ids, where they may differ: at `length` == `shared`."""
        parts: dict[int | None, dict[int, Watched]] = {}
        for order, watched in self.members.items():
            ends = len(watched.ids) == self.length
            next_id = None if ends else int(watched.ids[self.length])
            parts.setdefault(next_id, {})[order] = watched
        return [_Group(self.length, _shared_len(m, self.length), m) for m in parts.values()]

    def take_in(self, other: _Group) -> None:
        """Another group that waits at the same spot."""
        pair = {0: self.first, 1: other.first}
        self.shared = min(self.shared, other.shared, _shared_len(pair, self.length))
        for watched in other.members.values():
            watched.group = self
        in_order = next(reversed(self.members)) < other.first.order
        self.members |= other.members
        if not in_order:
            self.members = dict(sorted(self.members.items()))


def _shared_len(members: dict[int, Watched], known: int) -> int:
    """How many of their first ids all members agree in, which is `known` at least."""
    watched = iter(members.values())
    ids = next(watched).ids[known:]
    for other in watched:
        ids = ids[: common_len(ids, other.ids[known:])]
    return known + len(ids)


class PrefixWatch:
    """Follows the tree of a cache that it observes."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._spots: dict[_Place, dict[_Spot, _Group]] = {}
        self._order = LazyHeap[_Group]()

    def add(self, order: int, namespace: Namespace, ids: IntArray) -> Watched:
        """Watch a sequence until it is removed. `order` is its own, `ids` must not change."""
        watched = Watched(order, ids)
        point = self._tree.descend(self._tree.origin(namespace), ids)
        self._park(_Group(point.length, len(ids), {order: watched}), point.node)
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
        """Groups that wait for this node's first id follow it as far as they agree with it."""
        assert node.parent is not None
        spots = self._spots.get(_place(node.parent))
        group = spots.get((node.start, int(node.key[0]))) if spots else None
        if group is not None:
            self._unpark(group)
            self._follow(group, Handle(node, node.start))

    def split(self, upper: Node, lower: Node) -> None:
        """Groups whose match ended in the first part end in the upper node now."""
        spots = self._spots.get(lower)
        if spots is None:
            return
        for spot in [spot for spot in spots if spot[0] <= upper.end]:
            group = spots[spot]
            self._unpark(group)
            self._park(group, upper)

    def trimmed(self, leaf: Node) -> None:
        """Groups that had matched what is gone fall back to what is left."""
        spots = self._spots.get(leaf, {})
        self._fall_back([g for g in spots.values() if g.length > leaf.end], leaf, leaf.end)

    def detached(self, leaf: Node, parent: Node) -> None:
        """Groups that had matched the leaf fall back to its parent."""
        self._fall_back(list(self._spots.get(leaf, {}).values()), parent, parent.end)

    def _fall_back(self, groups: list[_Group], node: Node, length: int) -> None:
        for group in groups:
            self._unpark(group)
            group.length = length
            self._park(group, node)

    def cleared(self) -> None:
        """All is forgotten, the sequences as well: they are watched again if they are added."""
        self._spots.clear()
        self._order = LazyHeap[_Group]()

    # -- groups -------------------------------------------------------------------------

    def _follow(self, group: _Group, point: Handle) -> None:
        """Take a group as far down from `point` as the tree leads its members, and park it."""
        moving = [(group, point)]
        while moving:
            group, point = moving.pop()
            point = self._tree.descend(point, group.first.ids[point.length : group.shared])
            group.length = point.length
            if point.length < group.shared:
                self._park(group, point.node)
                continue
            self._order.discard(group)
            for part in group.parted():
                if part.wants_nothing:
                    self._park(part, point.node)
                else:
                    moving.append((part, point))

    def _park(self, group: _Group, node: Node) -> None:
        """Have a group wait at its length, which is in or at the end of `node`."""
        place = _place(node)
        spots = self._spots.setdefault(place, {})
        other = spots.get(group.spot)
        if other is not None:
            self._order.discard(group)
            first = other.first
            other.take_in(group)
            if other.first is not first:
                self._rank(other)
            return
        group.place = place
        spots[group.spot] = group
        self._rank(group)

    def _rank(self, group: _Group) -> None:
        self._order.put(group, (-group.length, group.first.order))

    def _unpark(self, group: _Group) -> None:
        spots = self._spots[group.place]
        del spots[group.spot]
        if not spots:
            del self._spots[group.place]


def _place(node: Node) -> _Place:
    return node if node.namespace is None else node.namespace
