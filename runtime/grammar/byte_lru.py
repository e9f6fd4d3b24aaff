"""A cache of what was used last, bounded by the bytes that it takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def num_bytes(self) -> int: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Sized)


class ByteLru(Generic[K, V]):
    """A value that is larger than the bound by itself is not kept, and drives nothing out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V) -> None:
        """What was not used for longest makes room."""
        self._drop(key)
        size = value.num_bytes  # as of now: an engine's grammar may grow while it is used
        if size > self._max_bytes:
            return
        self._values[key] = value, size
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._values)))

    def _drop(self, key: K) -> None:
        _, size = self._values.pop(key, (None, 0))
        self.num_bytes -= size
