"""Role markers that a server has told once, so that programs need not ask at each message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from espalier.runtime.programs.backend import RoleMarkers

_MAX_AGE_S = 60.0  # templates may write the date, and a server may be replaced
_MAX_ENTRIES = 4096

Roles = tuple[str, ...]


class MarkerCache:
    """Lives on one event loop. Many that ask for the same at the same time ask once.

    `ask` asks the server; `now` is a monotonic clock in seconds.
    """

    def __init__(
        self, ask: Callable[[Roles], Awaitable[RoleMarkers]], now: Callable[[], float]
    ) -> None:
        self._ask, self._now = ask, now
        self._entries: dict[Roles, tuple[float, RoleMarkers]] = {}
        self._asking = asyncio.Lock()

    async def get(self, roles: Roles) -> RoleMarkers:
        markers = self._known(roles)
        if markers is not None:
            return markers
        async with self._asking:
            markers = self._known(roles)  # by one who asked before
            if markers is None:
                markers = await self._ask(roles)
                if len(self._entries) >= _MAX_ENTRIES:
                    self._entries.clear()
                self._entries[roles] = (self._now(), markers)
        return markers

    def _known(self, roles: Roles) -> RoleMarkers | None:
        told_s, markers = self._entries.get(roles, (0.0, None))
        return markers if self._now() - told_s <= _MAX_AGE_S else None
