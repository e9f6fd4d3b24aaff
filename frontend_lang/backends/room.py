"""So many sequences at one time and no more, first come first served; knows no requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Room:
    """A semaphore whose holders count as many, on one event loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, count: int) -> AsyncGenerator[None]:
        """Hold room for `count` inside; who asks for more than there is gets all of it."""
        count = min(count, self._size)
        await self._take(count)
        try:
            yield
        finally:
            self._give(count)

    async def _take(self, count: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        self._give(0)
        try:
            await turn
        except asyncio.CancelledError:
            self._give(0 if turn.cancelled() else count)
            raise

    def _give(self, count: int) -> None:
        """Add what is free, and hand it to those whose turn it is."""
        self._free += count
        while self._queue:
            wanted, turn = self._queue[0]
            if turn.cancelled():
                self._queue.popleft()
            elif wanted <= self._free:
                self._queue.popleft()
                self._free -= wanted
                turn.set_result(None)
            else:
                return
