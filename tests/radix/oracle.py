"""What a radix cache should hold, as a plain dictionary of prefixes: slow, and plainly right.

It knows no nodes. A token is named by its namespace and all ids up to it; a prefix is locked
while a lock's prefix begins with it; the least recently used token without a token behind it
is evicted first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espalier.radix.types import Namespace

Prefix = tuple[int, ...]


@dataclass(eq=False)
class Token:
    slot: int
    step: int | None
    last_access: int


class Oracle:
    """Tokens by (namespace, prefix), and one entry in `locks` for each lock."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[Namespace, Prefix], Token] = {}
        self.locks: list[tuple[Namespace, Prefix]] = []
        self._clock = 0

    def match_len(self, namespace: Namespace, ids: Prefix) -> int:
        length = 0
        while length < len(ids) and (namespace, ids[: length + 1]) in self.tokens:
            length += 1
        return length

    def path(self, namespace: Namespace, prefix: Prefix) -> list[Token]:
        return [self.tokens[namespace, prefix[:end]] for end in range(1, len(prefix) + 1)]

    def slots(self, namespace: Namespace, prefix: Prefix) -> list[int]:
        return [token.slot for token in self.path(namespace, prefix)]

    def lock(self, namespace: Namespace, prefix: Prefix) -> None:
        self.locks.append((namespace, prefix))

    def unlock(self, namespace: Namespace, prefix: Prefix) -> None:
        self.locks.remove((namespace, prefix))
        self._clock += 1
        for token in self.path(namespace, prefix):
            token.last_access = self._clock

    def grow(
        self,
        namespace: Namespace,
        prefix: Prefix,
        ids: Prefix,
        slots: Sequence[int],
        *,
        step: int | None,
    ) -> list[int]:
        """Move a lock from `prefix` to `prefix + ids`; returns the slots not needed for it."""
        self.locks.remove((namespace, prefix))
        self.locks.append((namespace, prefix + ids))
        known = self.match_len(namespace, prefix + ids) - len(prefix)
        for i in range(known, len(ids)):
            self.tokens[namespace, prefix + ids[: i + 1]] = Token(slots[i], step, 0)
        return list(slots[:known])

    def settle(self, step: int) -> None:
        for token in self.tokens.values():
            if token.step == step:
                token.step = None

    def sound_len(
        self, namespace: Namespace, prefix: Prefix, doomed: Callable[[Token], bool]
    ) -> int:
        for length, token in enumerate(self.path(namespace, prefix)):
            if doomed(token):
                return length
        return len(prefix)

    def withdraw(self, doomed: Callable[[Token], bool]) -> int:
        cut = [key for key in self.tokens if self.sound_len(*key, doomed) < len(key[1])]
        for key in cut:
            del self.tokens[key]
        return len(cut)

    def num_evictable(self) -> int:
        return len(self._unlocked())

    def evict(self, n: int) -> None:
        for _ in range(n):
            inner = {(namespace, prefix[:-1]) for namespace, prefix in self.tokens}
            ends = self._unlocked() - inner
            oldest = min(ends, key=lambda key: self.tokens[key].last_access)
            del self.tokens[oldest]

    def _unlocked(self) -> set[tuple[Namespace, Prefix]]:
        locked = {
            (namespace, prefix[:end])
            for namespace, prefix in self.locks
            for end in range(1, len(prefix) + 1)
        }
        return self.tokens.keys() - locked
