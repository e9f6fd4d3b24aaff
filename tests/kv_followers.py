"""Followers of cache events: what a router would keep, written apart from what makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from espalier.radix.types import Namespace
from espalier.runtime.ipc.to_subscribers import Cleared, Event, EventBatch, Removed, Stored


@dataclass
class Run:
    """`ids` are all from the root on; those from `start` on are the run's own."""

    namespace: Namespace
    start: int
    ids: tuple[int, ...]


class Follower:
    """A mirror of a tree, right while it is `in_sync`."""

    def __init__(self, ask_for_snapshot: Callable[[], None]) -> None:
        self.in_sync = False
        self._ask = ask_for_snapshot
        self._epoch = self.expected = -1
        self.runs: dict[int, Run] = {}

    def take(self, batch: EventBatch) -> None:
        begins_anew = isinstance(batch.events[0], Cleared)
        gap = (batch.epoch, batch.first_sequence) != (self._epoch, self.expected)
        self._epoch = batch.epoch
        self.expected = batch.first_sequence + len(batch.events)
        self.in_sync = begins_anew or (self.in_sync and not gap)
        if self.in_sync:
            for event in batch.events:
                self._apply(event)
        else:
            self._ask()

    def tokens(self) -> set[tuple[Namespace, tuple[int, ...]]]:
        """Each token that the tree has, named by its namespace and all ids up to it."""
        found = [
            (run.namespace, run.ids[:end])
            for run in self.runs.values()
            for end in range(run.start + 1, len(run.ids) + 1)
        ]
        assert len(found) == len(set(found)), "a token is in two runs"
        return set(found)

    def _apply(self, event: Event) -> None:
        match event:
            case Stored(run, None, start, ids, namespace):
                assert namespace is not None and start == 0 and run not in self.runs
                self.runs[run] = Run(namespace, 0, tuple(ids.tolist()))
            case Stored(run, parent, start, ids):
                assert parent is not None and event.namespace is None and run not in self.runs
                above = self.runs[parent]
                assert above.start < start <= len(above.ids)
                path = above.ids[:start] + tuple(ids.tolist())
                self.runs[run] = Run(above.namespace, start, path)
            case Removed(run, start, end):
                left = self.runs[run]
                assert left.start <= start < end == len(left.ids)
                left.ids = left.ids[:start]
                if start == left.start:
                    del self.runs[run]
            case Cleared():
                self.runs.clear()
