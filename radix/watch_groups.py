"""Groups of waiting sequences that the tree holds equally much of; never looks at the tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .tree import Node, common_len
from .types import IntArray, Namespace

Place = Node | Namespace  # a node, or, as an idle root is forgotten, the namespace of a root

_END = -1  # instead of a next id


@dataclass(eq=False, slots=True)
class Watched:
    """One sequence. `order` tells sequences apart, and those of equal length go by it."""

    order: int
    ids: IntArray
    """All that may be matched: the match ends at `len(ids)` at most."""
    group: Group | None = None
    agrees: int = 0
    """How many of its first ids are those of its group."""
    turn: int = _END
    """The id behind these, if there is one."""

    @property
    def length(self) -> int:
        """How many of the ids the tree holds now, settled or promised."""
        assert self.group is not None
        return self.group.length

    def compare(self, ids: IntArray, known: int) -> None:
        """Find how far it agrees with a group's ids, which is as far as `known` at least."""
        self.agrees = known + common_len(self.ids[known:], ids[known:])
        self.turn = int(self.ids[self.agrees]) if self.agrees < len(self.ids) else _END


@dataclass(eq=False, slots=True)
class Group:
    """Sequences that agree with `ids`, in the first `shared` at least; the tree holds `length`.

        ids       0 ....... length ....... shared ....... len(ids)
        members   matched   | all alike    | they may part

    With `length` == `shared` each may want another id next, or none.
    """

    ids: IntArray
    length: int
    shared: int
    members: dict[int, Watched]  # by order, ascending; not empty while the group is parked
    place: Place = ()
    _turns: npt.NDArray[np.int64] | None = None
    """Of the members when `take` first looked; some may have left since, none has joined."""
    _orders: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for watched in self.members.values():
            watched.group = self

    @classmethod
    def of_one(cls, watched: Watched, length: int) -> Group:
        """A group of its own for a sequence, of which the tree holds `length`."""
        watched.agrees, watched.turn = len(watched.ids), _END
        return cls(watched.ids, length, len(watched.ids), {watched.order: watched})

    @property
    def first(self) -> Watched:
        return next(iter(self.members.values()))

    @property
    def next_id(self) -> int | None:
        """What all members want next; None where they may part."""
        return None if self.length == self.shared else int(self.ids[self.length])

    def parted(self) -> list[Group]:
        """Those who agree with `ids` beyond `length` and those who do not, where they may part.

        One of the two is this group, the larger one.
        """
        assert self.length == self.shared, (self.length, self.shared)
        going = [w for w in self.members.values() if w.agrees > self.length]
        if not going:
            self._forget_beyond()
            return [self]
        farther = min(watched.agrees for watched in going)
        if 2 * len(going) <= len(self.members):
            part = self._split_off(going, self.ids, farther)
            self._forget_beyond()
            return [part, self]
        staying = [w for w in self.members.values() if w.agrees == self.length]
        part = self._split_off(staying, self.ids[: self.length], self.length)
        self.shared = farther
        return [self, part] if part.members else [self]

    def take(self, next_id: int) -> Group | None:
        """Those who want this id next leave, and are a group of their own."""
        assert self.length == self.shared, (self.length, self.shared)
        if self._turns is None or self._orders is None:
            num, members = len(self.members), self.members.values()
            self._turns = np.fromiter((w.turn for w in members), np.int64, num)
            self._orders = np.fromiter(self.members, np.int64, num)
        orders = self._orders[self._turns == next_id].tolist()
        wanting = [self.members[order] for order in orders if order in self.members]
        if not wanting:
            return None
        ids = wanting[0].ids
        for watched in wanting:
            watched.compare(ids, self.length)
        return self._split_off(wanting, ids, min(watched.agrees for watched in wanting))

    def take_in(self, other: Group) -> None:
        """Another group of this length that wants the same next id, or may part as well."""
        common = self.length + common_len(self.ids[self.length :], other.ids[self.length :])
        beyond = int(self.ids[common]) if common < len(self.ids) else _END
        for watched in other.members.values():
            watched.group = self
            if watched.agrees > common or (watched.agrees == common and watched.turn == beyond):
                watched.compare(self.ids, common)
        self.shared = min(self.shared, other.shared, common)
        in_order = next(reversed(self.members)) < other.first.order
        self.members |= other.members
        if not in_order:
            self.members = dict(sorted(self.members.items()))
        self._turns = self._orders = None

    def _split_off(self, leaving: list[Watched], ids: IntArray, shared: int) -> Group:
        for watched in leaving:
            del self.members[watched.order]
        return Group(ids, self.length, shared, {watched.order: watched for watched in leaving})

    def _forget_beyond(self) -> None:
        """Nobody agrees with `ids` any further."""
        self.ids = self.ids[: self.length]
