"""When the books are recounted in production: in the quiet after work; knows no books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

QUIET_S = 2.0  # without work, before a recount begins
INTERVAL_S = 60.0  # from the end of a recount to the next one's begin, at least


class IdleAudit:
    """One recount after each spell of work, in pieces, for as long as nothing happens."""

    def __init__(
        self, recount: Callable[[], Iterator[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recount = recount
        self._clock = clock
        self._pieces: Iterator[None] | None = None
        self._is_due = False
        self._not_before = 0.0
        self._quiet_since = 0.0

    def disturb(self) -> None:
        """The books change: what has been recounted of them so far says nothing any more."""
        self._is_due = True
        self._quiet_since = self._clock()
        self._pieces = None

    def wait_s(self) -> float | None:
        """After how long without work to call `go_on`; None if there is nothing to recount."""
        if not self._is_due:
            return None
        begin = max(self._quiet_since + QUIET_S, self._not_before)
        return max(0.0, begin - self._clock())

    def go_on(self) -> None:
        """Recount the next piece, if it is time for one.

        Raises what the recount raises when the books are wrong.
        """
        if self.wait_s() != 0.0:
            return
        pieces, self._pieces = self._pieces or self._recount(), None
        for _ in pieces:
            self._pieces = pieces  # there is more
            return
        self._is_due = False
        self._not_before = self._clock() + INTERVAL_S
