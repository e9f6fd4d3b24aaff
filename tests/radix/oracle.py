"""What a radix cache should hold, as a plain dictionary of prefixes: slow, and plainly right.

It knows no nodes. A token is named by its namespace and all ids up to it; a prefix is locked
while a lock's prefix begins with it. Where a lock or an insertion has ever ended, and where paths
fork, there is a cut, and the tokens between two cuts are a run. A run that has become free to go
is ranked, by its last token's marks and by where it lies; the one of the lowest rank loses its
last token first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2

from espalier.radix.types import Namespace

Prefix = tuple[int, ...]
Key = tuple[Namespace, Prefix]


@dataclass(eq=False)
class Token:
    slot: int
    step: int | None
    last_access: int = 0
    use_count: int = 0
    priority: int = 0


Ranking = Callable[[Token, int, int], tuple[float, ...]]
"""By a run's last token, the position of its first one, and that behind its last one."""


def lru(token: Token, start: int, end: int) -> tuple[float, ...]:
    return (token.last_access,)


def lfu(token: Token, start: int, end: int) -> tuple[float, ...]:
    return token.use_count, token.last_access


def priority(token: Token, start: int, end: int) -> tuple[float, ...]:
    return token.priority, token.last_access


def size_aware(break_even: float, half_life: float) -> Ranking:
    def rank(token: Token, start: int, end: int) -> tuple[float, ...]:
        costs = [1 + (position + 0.5) / break_even for position in range(start, end)]
        saving = sum(costs) / len(costs) * max(1, token.use_count)
        return (log2(saving) + token.last_access / half_life,)

    return rank


class Oracle:
    """Tokens by (namespace, prefix), one entry in `locks` for each lock, leases by their ends."""

    def __init__(self, ranking: Ranking = lru) -> None:
        self.tokens: dict[Key, Token] = {}
        self.locks: list[Key] = []
        self.leases: dict[Key, float] = {}
        """When each leased prefix is free again."""
        self._clock = 0
        self._ranking = ranking
        self._cuts: set[Key] = set()
        self._ranks: dict[Key, tuple[float, ...]] = {}
        """Of every run that is free to go, named by its last token: as it was when it became so."""

    def match_len(self, namespace: Namespace, ids: Prefix) -> int:
        length = 0
        while length < len(ids) and (namespace, ids[: length + 1]) in self.tokens:
            length += 1
        return length

    def path(self, namespace: Namespace, prefix: Prefix) -> list[Token]:
        return [self.tokens[namespace, prefix[:end]] for end in range(1, len(prefix) + 1)]

    def slots(self, namespace: Namespace, prefix: Prefix) -> list[int]:
        return [token.slot for token in self.path(namespace, prefix)]

    def leased(self) -> set[Key]:
        """The tokens that leases protect."""
        return _covered(self.leases)

    def yieldable(self) -> set[Key]:
        """The tokens that only leases protect."""
        others = self.locks.copy()
        for lease in self.leases:
            others.remove(lease)
        return self.leased() - _covered(others)

    def take_lease(
        self, namespace: Namespace, prefix: Prefix, expiry: float, max_tokens: int
    ) -> bool:
        """Whether it is granted; a lease is a lock, and is listed among them too."""
        if not 0 < len(prefix) <= max_tokens:
            return False
        self._keep_lease(namespace, prefix, expiry)
        while len(self.leased()) > max_tokens:
            self.end_lease(*self._next_lease(besides=(namespace, prefix)))
        return True

    def expire(self, now: float) -> None:
        while self.leases and self.leases[self._next_lease()] <= now:
            self.end_lease(*self._next_lease())

    def make_room(self, num_missing: int) -> None:
        while self.num_evictable() < num_missing and self.yieldable():
            self.end_lease(*self._next_lease())

    def end_lease(self, namespace: Namespace, prefix: Prefix) -> None:
        del self.leases[namespace, prefix]
        self.unlock(namespace, prefix)

    def roll_back_leases(self, doomed: Callable[[Token], bool]) -> None:
        for (namespace, prefix), expiry in list(self.leases.items()):
            sound = prefix[: self.sound_len(namespace, prefix, doomed)]
            if sound != prefix:
                if sound:
                    self._keep_lease(namespace, sound, expiry)
                self.end_lease(namespace, prefix)

    def _keep_lease(self, namespace: Namespace, prefix: Prefix, expiry: float) -> None:
        if (namespace, prefix) not in self.leases:
            self.lock(namespace, prefix)
        self.leases[namespace, prefix] = max(expiry, self.leases.get((namespace, prefix), expiry))

    def _next_lease(self, besides: Key | None = None) -> Key:
        return min((key for key in self.leases if key != besides), key=self.leases.__getitem__)

    def lock(self, namespace: Namespace, prefix: Prefix) -> None:
        self.locks.append((namespace, prefix))
        self._cuts.add((namespace, prefix))
        self._rank()

    def note_use(self, namespace: Namespace, prefix: Prefix, priority: int) -> None:
        for token in self.path(namespace, prefix):
            token.priority = max(token.priority, priority) if token.use_count else priority
            token.use_count += 1

    def unlock(self, namespace: Namespace, prefix: Prefix) -> None:
        self.locks.remove((namespace, prefix))
        self._clock += 1
        for token in self.path(namespace, prefix):
            token.last_access = self._clock
        self._rank()

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
            self.tokens[namespace, prefix + ids[: i + 1]] = Token(slots[i], step)
        self._cuts |= {(namespace, prefix + ids[:known]), (namespace, prefix + ids)}
        self._rank()
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
        self._cuts &= self.tokens.keys()
        self._rank()
        return len(cut)

    def num_evictable(self) -> int:
        return len(self._unlocked())

    def evict(self, n: int) -> None:
        for _ in range(n):
            last = min(self._ranks, key=self._ranks.__getitem__)
            namespace, prefix = last
            rank, shorter = self._ranks[last], (namespace, prefix[:-1])
            del self.tokens[last]
            if self._start(last) < len(prefix) - 1:
                self._ranks[shorter] = rank
                self._cuts.add(shorter)
            self._cuts.discard(last)
            self._rank()

    def _rank(self) -> None:
        """Rank the runs that have become free to go, and forget those that no longer are."""
        inner = {(namespace, prefix[:-1]) for namespace, prefix in self.tokens}
        ends = self._unlocked() - inner
        self._ranks = {
            key: self._ranks[key]
            if key in self._ranks
            else self._ranking(self.tokens[key], self._start(key), len(key[1]))
            for key in ends
        }

    def _start(self, last: Key) -> int:
        """Where the run begins that ends with this token."""
        namespace, prefix = last
        start = len(prefix) - 1
        while start and (namespace, prefix[:start]) not in self._cuts:
            start -= 1
        return start

    def _unlocked(self) -> set[Key]:
        return self.tokens.keys() - _covered(self.locks)


def _covered(prefixes: Iterable[Key]) -> set[Key]:
    """The tokens on the ways to some prefixes."""
    return {(ns, prefix[:end]) for ns, prefix in prefixes for end in range(1, len(prefix) + 1)}
