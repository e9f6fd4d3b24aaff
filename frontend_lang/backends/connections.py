"""Keep-alive connections to one server; knows no paths, no retries and no JSON.

A pool of our own over httpcore's single connections: the library's walks over all of its
connections for each request that begins or ends (11 ms of CPU for each of 64 at a time,
against 0.8 ms here), and programs open thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpcore

from espalier.runtime.errors import InvalidRequest

# Servers close idle connections after 5 s or more; a request must not be on its way then.
_KEEP_ALIVE_S = 3.0

_LOST = (httpcore.NetworkError, httpcore.ProtocolError)

BROKEN = (*_LOST, httpcore.TimeoutException)
"""What ends a request without its answer; `ConnectError` and `ConnectTimeout`, before it was
sent."""


class StaleConnection(Exception):
    """The server had closed the connection before it took the request: try another one."""


class Connections:
    """Lives on one event loop. With `uds`, all connections go to that Unix socket."""

    def __init__(
        self, base_url: str, *, uds: str | None, timeout_s: float, connect_timeout_s: float
    ) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"base_url {base_url!r}: {error}", param="base_url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"base_url must be like http://host:port, not {base_url!r}", param="base_url"
            )
        self.base_url = base_url.rstrip("/")
        self._origin = httpcore.URL(
            scheme=parts.scheme, host=parts.hostname, port=port, target="/"
        ).origin
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._ssl_context = httpcore.default_ssl_context() if parts.scheme == "https" else None
        self._uds = uds
        self._extensions = {
            "timeout": {"connect": connect_timeout_s, "read": timeout_s, "write": timeout_s}
        }
        self._idle: deque[httpcore.AsyncHTTPConnection] = deque()

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[httpcore.Response]:
        """Send a request; its response is there when its head is, its body can be read inside.

        Leaving the block before the body's end closes the connection: so the server learns
        that nobody reads it any more. Raises `StaleConnection` and httpcore's errors.
        """
        connection, is_used = await self._take()
        request = httpcore.Request(
            method,
            self._url(path),
            headers=[("Host", self._host), ("Content-Length", str(len(body))), *headers.items()],
            content=body,
            extensions=self._extensions,
        )
        try:
            response = await connection.handle_async_request(request)
        except _LOST as error:
            if is_used:
                raise StaleConnection from error
            raise
        try:
            yield response
        finally:
            await response.aclose()
            await self._give_back(connection)

    async def close(self) -> None:
        """Close the idle connections; those in use belong to their users."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _take(self) -> tuple[httpcore.AsyncHTTPConnection, bool]:
        """A connection, and whether it has been used before."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection, True
            await connection.aclose()
        connection = httpcore.AsyncHTTPConnection(
            self._origin, self._ssl_context, keepalive_expiry=_KEEP_ALIVE_S, uds=self._uds
        )
        return connection, False

    async def _give_back(self, connection: httpcore.AsyncHTTPConnection) -> None:
        """Keep it if it can be used again (if not, it has closed itself), and let those go
        that nobody has needed for long."""
        if connection.is_idle():
            self._idle.append(connection)
        while self._idle and self._idle[0].has_expired():
            await self._idle.popleft().aclose()

    def _url(self, path: str) -> httpcore.URL:
        scheme, host, port = self._origin.scheme, self._origin.host, self._origin.port
        return httpcore.URL(scheme=scheme, host=host, port=port, target=self._path + path)
