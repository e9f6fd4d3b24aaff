"""Writes down how the radix tree changes, for those who follow it; knows no sockets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from espalier.radix.tree import Node, RadixTree
from espalier.radix.types import IntArray

from ..ipc.to_subscribers import Cleared, Event, EventBatch, Removed, Stored


class TreeJournal:
    """An observer of one tree from its beginning on; `send` gets its events in batches.

    A split is no event: both halves stay parts of the run that came in.
    """

    def __init__(self, epoch: int, send: Callable[[EventBatch], None]) -> None:
        """`epoch` tells the journals of different processes apart, in 64 bits."""
        self._epoch = epoch
        self._send = send
        self._events: list[Event] = []
        self._next_sequence = 0

    def attached(self, node: Node) -> None:
        self._events.append(_stored(node, node.key))

    def split(self, upper: Node, lower: Node) -> None: ...

    def trimmed(self, leaf: Node, num_tokens: int) -> None:
        self._events.append(Removed(leaf.run, leaf.end, leaf.end + num_tokens))

    def detached(self, leaf: Node, parent: Node) -> None:
        self._events.append(Removed(leaf.run, leaf.start, leaf.end))

    def cleared(self) -> None:
        self._events.append(Cleared())

    def publish(self) -> None:
        """Send what has happened since the last time, if anything has."""
        if self._events:
            events, self._events = tuple(self._events), []
            batch = EventBatch(self._epoch, self._next_sequence, events)
            self._next_sequence += len(events)
            self._send(batch)

    def publish_all(self, tree: RadixTree) -> None:
        """Send all that the tree holds, in one batch that begins with `Cleared`."""
        self.publish()
        parts: dict[int, list[Node]] = {}
        for node in tree.nodes():
            parts.setdefault(node.run, []).append(node)
        self._events.append(Cleared())
        for run in parts.values():
            self._events.append(_stored(run[0], np.concatenate([node.key for node in run])))
        self.publish()


def _stored(node: Node, ids: IntArray) -> Stored:
    """`ids` came in with this node's run, of which it is the first part."""
    parent = node.parent
    assert parent is not None, node
    if parent.is_root:
        return Stored(node.run, None, node.start, ids, parent.namespace)
    return Stored(node.run, parent.run, node.start, ids)
