"""Waiting sequences as a tree of their own: what many begin with is there once.

Knows how far another tree holds each branch, but never looks at that tree: see watch.py.

    ()                          root, end = 0
    └─ [5 6 7 8]                start = 0, end = 4    two wait that begin with 5 6 7 8
       ├─ [1 9]                 start = 4, end = 6    one of them
       └─ [3]                   start = 4, end = 5    the other
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field

from .core import Node, common_len
from .types import IntArray, Namespace

Place = Node | Namespace  # a node, or, as an idle root is forgotten, the namespace of a root


@dataclass(eq=False, slots=True)
class Watched:
    """One sequence. `order` tells sequences apart, and those of equal length go by it."""

    order: int
    ids: IntArray
    """All that may be matched: the match ends at `len(ids)` at most."""
    branch: Branch
    """The one that ends where the sequence does."""

    @property
    def length(self) -> int:
        """How many of the ids the tree holds now, settled or promised."""
        branch = self.branch
        while branch.place is None:
            branch = branch.above
        return branch.held


@dataclass(eq=False, repr=False, slots=True)
class Branch:
    """A run of ids that the same sequences begin with; they end here, or go on in `children`.

        ids         0 ....... start ....... held ....... end
                    parent    | held        | not held

    The tree has reached a branch when it holds some of its run; a root it always has. So
    above a reached branch the tree holds everything, and below one that is not, nothing.

    Sequences end at a branch or have a branch fork off there: no other branch lasts. What
    ends here, and the children that are not reached, wait here: as long as a branch has not
    been reached or is held in part that is all there is, and a sequence waits at one reached
    branch exactly, if need be by way of branches that are not.
    """

    ids: IntArray
    """From the root on, those of one sequence; they may go on beyond `end`."""
    start: int
    end: int
    parent: Branch | None
    held: int
    """Tokens that the tree holds, from the root; `start` if it has not reached this branch."""
    place: Place | None = None
    """Where in the tree `held` ends; None if it has not reached this branch."""
    children: dict[int, Branch] = field(default_factory=dict[int, "Branch"])
    """By the first id of the child's run."""
    num_ending: int = 0
    """Sequences that end here."""
    waiting: list[tuple[int, Watched | Branch]] = field(
        default_factory=list[tuple[int, "Watched | Branch"]]
    )
    """By the order of the sequence, or of the first one that waits at the child; ascending."""
    rank: tuple[int, int] | None = None
    """By which a reached branch is ranked now; None if nobody waits at it."""

    @property
    def above(self) -> Branch:
        assert self.parent is not None, "a root"
        return self.parent

    @property
    def first(self) -> int | None:
        """The order of the first sequence that waits here."""
        return self.waiting[0][0] if self.waiting else None

    def first_beyond(self, passed: Collection[int]) -> int | None:
        """The same, without the orders that are among the `passed` ones."""
        first: int | None = None
        branches: list[Branch] = [self]
        while branches:
            for order, part in branches.pop().waiting:
                if first is not None and order > first:
                    break
                if order not in passed:
                    first = order
                    break
                if isinstance(part, Branch):
                    branches.append(part)
        return first

    def rearrange(self, part: Watched | Branch, was: int | None, now: int | None) -> None:
        """A part goes by `now` instead of `was`; None: it does not wait here."""
        if was is not None:
            index = bisect_left(self.waiting, (was,))
            assert self.waiting[index][1] is part, (was, self.waiting[index])
            del self.waiting[index]
        if now is not None:
            insort(self.waiting, (now, part))

    def agrees_until(self, ids: IntArray, spelt: bytes) -> int:
        """How many of the first `ids` are those of this branch, which agree up to its start.

        `spelt`: the bytes of `ids`, which cost far less to compare where the run is short.
        """
        run = self.ids[self.start : self.end]
        if spelt.startswith(run.tobytes(), self.start * run.itemsize):
            return self.end
        return self.start + common_len(run, ids[self.start :])

    def grow(self, ids: IntArray) -> Branch:
        """A new child for ids that go another way than all others from here on."""
        child = Branch(ids, self.end, len(ids), self, self.end)
        self.children[int(ids[self.end])] = child
        return child

    def cut(self, end: int) -> Branch:
        """Give the run up to `end` to a new branch above this one, not reached; returns that."""
        above = self.above
        upper = Branch(self.ids, self.start, end, above, self.start)
        above.children[int(self.ids[self.start])] = upper
        upper.children[int(self.ids[end])] = self
        self.parent, self.start, self.held = upper, end, max(self.held, end)
        return upper

    def absorb_parent(self) -> None:
        """Take over the run of a parent that has no other child: the opposite of a cut."""
        parent = self.above
        above = parent.above
        above.children[int(self.ids[parent.start])] = self
        self.parent, self.start = above, parent.start
        if self.place is None:
            self.held = self.start

    def drop(self) -> None:
        """Leave the parent."""
        assert not self.children and not self.waiting, self
        del self.above.children[int(self.ids[self.start])]
