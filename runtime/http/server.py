"""The HTTP server itself: uvicorn, with what it leaves open closed; knows no routes."""

from __future__ import annotations

import asyncio
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
_CLOSE_CONNECTIONS_S = 2


class HttpServer(uvicorn.Server):
    """Sleeps until it is told to stop: the library's own loop wakes ten times a second."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=OneAtATime,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # its time would stand still without the library's loop
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
            )
        )
        self._stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self._stop.wait()

    def stop(self, *, now: bool = False) -> None:
        """End: when the open connections have ended, for a short while, or now."""
        self.should_exit, self.force_exit = True, now or self.force_exit
        self._stop.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal that was sent to this very process."""
        self.stop()


class OneAtATime(HttpToolsProtocol):
    """A connection with one request at a time, whose head is at most `MAX_HEAD_BYTES` long.

    A request that is pipelined behind one that still runs is dropped, and the connection
    closed after the first answer, as HTTP allows: the library would stop to read, and so not
    notice that the client has gone.
    """

    _in_head = True
    _head_len = 0
    _is_dropped = False

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._head_len > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")
                return
            self._head_len += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        running = self.cycle and not self.cycle.response_complete
        self._is_dropped = self._is_dropped or bool(running)
        if self._is_dropped:
            self.cycle.keep_alive = False
        else:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_dropped:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_dropped:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if not self._is_dropped:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_dropped:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_len = True, 0
        if not self._is_dropped:
            super().on_message_complete()
