"""Who is told how the tree changes; each call comes when the change is complete."""

from __future__ import annotations

from typing import Protocol

from .tree import Node


class TreeObserver(Protocol):
    """Must not change the tree or the cache."""

    def attached(self, node: Node) -> None:
        """A new node hangs below its parent."""
        ...

    def split(self, upper: Node, lower: Node) -> None:
        """`lower` has kept its identity and given the first part of its run to `upper`."""
        ...

    def trimmed(self, leaf: Node, num_tokens: int) -> None:
        """The last `num_tokens` tokens of a leaf are gone; some are left."""
        ...

    def detached(self, leaf: Node, parent: Node) -> None:
        """A leaf is gone; `leaf` still has its run and its end."""
        ...

    def cleared(self) -> None:
        """The tree is empty, and was perhaps not what it should have been before."""
        ...
