"""In which order waiting requests are tried for admission: one class for each policy.

A line finds its best request at the cost of those that are looked at, however many wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
from typing import Any, Protocol

from espalier.radix.cache import RadixCache
from espalier.radix.watch import PrefixWatch, Watched

from ..config import SchedulePolicy
from .request import Request


class Line(Protocol):
    """Waiting requests in the order of a policy."""

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...

    def clear(self) -> None:
        """Nobody waits any more; the cache was reset."""
        ...

    def best(self, passed: Collection[int]) -> Request | None:
        """The first request, without those whose serial is among the `passed` ones."""
        ...


class RankedLine:
    """By a rank that does not change while a request waits, the lowest first; then by arrival."""

    def __init__(self, rank: Callable[[Request], Any]) -> None:
        self._rank = rank
        self._requests: list[tuple[Any, int, Request]] = []  # by rank and serial, ascending

    def add(self, request: Request) -> None:
        insort(self._requests, (self._rank(request), request.serial, request))

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, (self._rank(request), request.serial))
        assert self._requests[index][2] is request, request.key
        del self._requests[index]

    def clear(self) -> None:
        self._requests.clear()

    def best(self, passed: Collection[int]) -> Request | None:
        for _, serial, request in self._requests:
            if serial not in passed:
                return request
        return None


class PrefixLine:
    """The longest prefix in the cache first, then by arrival.

    That is what the tree holds at this moment: a request that is admitted puts others forward
    that begin like it, in the same step. The cache is observed while anybody waits here.
    """

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        self._watch = PrefixWatch(cache.tree)
        self._watched: dict[int, Watched] = {}
        self._requests: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        serial, cap = request.serial, 0 if request.quarantined else request.match_cap
        ids = request.ids[: max(cap, 0)]
        if not self._requests:
            self._cache.observe(self._watch)
        self._requests[serial] = request
        self._watched[serial] = self._watch.add(serial, request.message.namespace, ids)

    def remove(self, request: Request) -> None:
        del self._requests[request.serial]
        self._watch.remove(self._watched.pop(request.serial))
        if not self._requests:
            self._cache.stop_observing(self._watch)

    def clear(self) -> None:
        if self._requests:
            self._cache.stop_observing(self._watch)
        self._requests.clear()
        self._watched.clear()  # the watch, told by the cache, has forgotten them too

    def best(self, passed: Collection[int]) -> Request | None:
        watched = self._watch.best(passed)
        return None if watched is None else self._requests[watched.order]


def arrival_line() -> Line:
    """First come, first served."""
    return RankedLine(lambda _: 0)


def line_maker(policy: SchedulePolicy, cache: RadixCache, *, share: bool) -> Callable[[], Line]:
    """Makes the lines of a policy. Nothing is matched if requests share no prefixes."""
    match policy:
        case "priority":
            return lambda: RankedLine(lambda r: -r.message.hints.priority)
        case "program":
            return lambda: RankedLine(lambda r: r.message.hints.stages_left)
        case "lpm" if share:
            return lambda: PrefixLine(cache)
        case _:
            return arrival_line
