"""JSON answers, event streams, and work that ends with its client; knows no route.

A disconnected client is noticed in every state, since each response that takes time watches
for it with one task of its own: nothing is paid per event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import EspalierError
from .errors import body_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
"""The last event of a stream that went well."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


_DIRECT_SEND = "espalier.direct_send"


class ClientGone(Exception):
    """The client disconnected: nobody reads the answer."""


class JsonResponse(Response):
    """`content` as JSON, by orjson."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return orjson.dumps(content)


def sse(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


class DirectSend:
    """An ASGI layer that lets streams write past the framework's layers within it.

    Each of those wraps `send` once more, to know whether a response has begun: for the parts
    of a body after its beginning that is nothing but time.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_DIRECT_SEND] = send
        await self._app(scope, receive, send)


class EventStream(Response):
    """A response of server-sent events, as `events` makes them.

    However the response ends, `events` is closed, and then `on_close` called: a generator
    that was never started has run nothing that a `finally` of its own could undo. An
    `EspalierError` that it raises becomes the last event.
    """

    def __init__(
        self, events: AsyncGenerator[bytes], on_close: Callable[[], None] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(_STREAM_HEADERS)
        self._events, self._on_close = events, on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _until_disconnect(receive, self._run(send, scope.get(_DIRECT_SEND, send)))
        except ClientGone:
            logger.info("a client left its stream")
        finally:
            await self._events.aclose()
            if self._on_close is not None:
                self._on_close()

    async def _run(self, send: Send, send_part: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = b""
            try:
                async for event in events:
                    # Let the other streams make their events of this step first: writes in a
                    # row wake a reader of them all only once.
                    await asyncio.sleep(0)
                    part = {"type": "http.response.body", "body": event, "more_body": True}
                    await send_part(part)
            except EspalierError as error:
                last = sse(body_of(error))
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects: then `ClientGone`.

    The request's body has been read before.
    """
    return await _until_disconnect(request.receive, work)


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        doing.cancel()
        await asyncio.wait((doing, leaving))
    if doing.cancelled():
        raise ClientGone
    return doing.result()  # also if both are done: what the work opened must not get lost


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
