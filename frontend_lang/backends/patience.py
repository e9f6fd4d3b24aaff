"""When to try a request again, and when no more; knows no requests, and waits for nothing."""

from __future__ import annotations

from collections.abc import Callable

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0


class Patience:
    """For one request: delays that double, all within `total_s` of its first try.

    `now` is a monotonic clock in seconds.
    """

    def __init__(self, total_s: float, now: Callable[[], float]) -> None:
        self._now = now
        self._end_s = now() + total_s
        self._delay_s = _FIRST_DELAY_S

    def delay_s(self, asked_s: float = 0.0) -> float | None:
        """How long to wait before the next try, at least `asked_s`; None: give up."""
        delay_s = max(asked_s, self._delay_s)
        if self._now() + delay_s > self._end_s:
            return None
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
        return delay_s
