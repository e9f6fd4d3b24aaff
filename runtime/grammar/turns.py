"""Who may compute now: jobs in the order in which they came; knows no processes.

One job runs at a time until it is demoted; then the next one begins beside it, as long as
there are not too many. So a long job does not stand before the short ones behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Turn:
    """One job's, from when it joins the queue to its end."""

    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_demoted: bool = False


class Turns:
    """For one event loop. Demoted jobs that run are `max_demoted`, and one beyond at most."""

    def __init__(self, max_demoted: int) -> None:
        self._max_demoted = max_demoted
        self._waiting: dict[Turn, None] = {}  # in order
        self._running: set[Turn] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def take(self, patience_s: float) -> AsyncGenerator[Turn]:
        """Wait for a turn, and have it. Raises `TimeoutError` if none comes in time."""
        turn = Turn()
        self._waiting[turn] = None
        self._advance()
        try:
            async with asyncio.timeout(patience_s):
                await turn.granted
            yield turn
        finally:
            self._waiting.pop(turn, None)
            self._running.discard(turn)
            self._advance()

    def demote(self, turn: Turn) -> None:
        """The job of `turn` stands in nobody's way any more."""
        turn.is_demoted = True
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._has_room():
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.granted.cancelled():  # else whoever waited is on his way out
                self._running.add(turn)
                turn.granted.set_result(None)

    def _has_room(self) -> bool:
        return len(self._running) <= self._max_demoted and all(
            turn.is_demoted for turn in self._running
        )
