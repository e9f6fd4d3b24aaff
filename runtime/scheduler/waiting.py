"""The requests that wait for admission, and in which order they are tried.

No policy starves: a request that later ones passed `max_passes` times comes first, and if
it does not fit then, nothing behind it is admitted before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..config import SchedulePolicy
from .request import Phase, Request


class WaitingQueue:
    """Waiting requests by order of arrival."""

    def __init__(
        self, policy: SchedulePolicy, max_passes: int, match_len: Callable[[Request], int]
    ) -> None:
        self._policy = policy
        self._max_passes = max_passes
        self._match_len = match_len
        self._requests: dict[int, Request] = {}  # by serial

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        request.phase = Phase.WAITING
        self._requests[request.serial] = request

    def remove(self, request: Request) -> None:
        del self._requests[request.serial]

    def admitted(self, request: Request) -> None:
        """Take out an admitted request; it has passed every earlier one that still waits."""
        self.remove(request)
        for other in self._requests.values():
            if other.serial < request.serial:
                other.num_passes += 1

    def must_not_be_passed(self, request: Request) -> bool:
        return request.num_passes >= self._max_passes

    def ordered(self) -> list[Request]:
        """The order in which to try admission now; a snapshot."""
        return sorted(self._requests.values(), key=self._key)

    def _key(self, request: Request) -> tuple[int, int, int]:
        if self.must_not_be_passed(request):
            return (0, 0, request.serial)
        match_len = self._match_len(request) if self._policy == "lpm" else 0
        return (1, -match_len, request.serial)
