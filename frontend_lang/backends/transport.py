"""Requests to one server: how many at a time, tried again where that is safe, errors as ours.

Knows no bodies. A request is tried again only until its answer has begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import httpcore

from espalier.runtime.errors import EspalierError, RequestFailed, Unavailable

from .connections import BROKEN, Connections, StaleConnection
from .event_stream import EventReader
from .native_answers import error_of
from .patience import Patience
from .room import Room

# A process has 1,024 file descriptors by default, and a server takes as many sequences.
_MAX_SEQUENCES = 512
_MAX_CALLS = 64
_DONE = b"[DONE]"

PATIENCE_S = 15.0
"""How long after it was first tried a request may be tried again."""


class Transport:
    """Lives on one event loop.

    A server that refuses connections is waited for, by `sleep`, only if it has answered
    before: then it is being replaced, and not at another address.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        api_key: str | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connections = connections
        self._sleep = sleep
        self._url = connections.base_url
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sequences, self._calls = Room(_MAX_SEQUENCES), Room(_MAX_CALLS)
        self._has_answered = False

    async def call(
        self, method: str, path: str, body: bytes = b"", *, patience_s: float = PATIENCE_S
    ) -> bytes:
        """The answer to a short request."""
        async with self._calls.of(1), AsyncExitStack() as stack:
            return await self._read(await self._answered(stack, method, path, body, patience_s))

    async def collect(self, path: str, body: bytes, num_sequences: int) -> bytes:
        """The answer to a request that the model has to work for."""
        async with self._sequences.of(num_sequences), AsyncExitStack() as stack:
            return await self._read(await self._answered(stack, "POST", path, body))

    @asynccontextmanager
    async def events(
        self, path: str, body: bytes, num_sequences: int
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The data of the events that answer, as they come; leaving the block ends the request."""
        async with self._sequences.of(num_sequences), AsyncExitStack() as stack:
            response = await self._answered(stack, "POST", path, body)
            yield await stack.enter_async_context(aclosing(self._events(response)))

    async def close(self) -> None:
        await self._connections.close()

    async def _answered(
        self,
        stack: AsyncExitStack,
        method: str,
        path: str,
        body: bytes,
        patience_s: float = PATIENCE_S,
    ) -> httpcore.Response:
        """The response once there is one with status 200; `stack` keeps it open."""
        patience = Patience(patience_s, time.monotonic)
        while True:
            try:
                async with AsyncExitStack() as attempt:
                    response = await attempt.enter_async_context(
                        self._connections.stream(method, path, self._headers, body)
                    )
                    self._has_answered = True
                    if response.status == 200:
                        stack.push_async_exit(attempt.pop_all())
                        return response
                    error = error_of(response.status, await self._read(response), self._url)
                    delay_s = _delay_s(patience, error, response)
            except StaleConnection:
                continue
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as cause:
                error = Unavailable(f"{self._url} can't be reached: {_why(cause)}")
                error.__cause__ = cause
                delay_s = patience.delay_s() if self._has_answered else None
            except BROKEN as cause:
                raise self._lost(cause) from cause
            if delay_s is None:
                raise error
            await self._sleep(delay_s)

    async def _read(self, response: httpcore.Response) -> bytes:
        try:
            return await response.aread()
        except BROKEN as cause:
            raise self._lost(cause) from cause

    async def _events(self, response: httpcore.Response) -> AsyncGenerator[bytes]:
        """Reads on to the end behind the last event, so that the connection can be kept."""
        reader = EventReader()
        try:
            async for chunk in response.aiter_stream():
                for event in reader.feed(chunk):
                    if event != _DONE:
                        yield event
        except BROKEN as cause:
            raise self._lost(cause) from cause

    def _lost(self, cause: Exception) -> RequestFailed:
        if isinstance(cause, httpcore.TimeoutException):
            return RequestFailed(f"{self._url} has not answered in time")
        return RequestFailed(f"the connection to {self._url} was lost: {_why(cause)}")


def _delay_s(patience: Patience, error: EspalierError, response: httpcore.Response) -> float | None:
    """The server says itself whether it makes sense to try again, and when."""
    headers = {name.lower(): value for name, value in response.headers}
    retry_after = headers.get(b"retry-after", b"")
    if isinstance(error, Unavailable) and retry_after.isdigit():
        return patience.delay_s(float(retry_after))
    return None


def _why(cause: Exception) -> str:
    return str(cause) or type(cause).__name__
