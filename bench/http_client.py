"""A load generator that costs next to nothing: kept connections, events only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import orjson

_EVENT = b"data: "
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Served:
    """What one stream gave: seconds to its first and to its last event, and the last event."""

    ttft_s: float
    end_s: float
    last: dict[str, object]


class Connection:
    """One connection to a server, used for one request after the other."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port, self._netloc = address.hostname, address.port, address.netloc

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()

    async def stream(
        self, path: str, body: dict[str, object], keep: Callable[[bytes], None] | None = None
    ) -> Served:
        """POST `body` and read events to the end; `keep` gets each. Raises if the server
        refuses."""
        payload = orjson.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        start = perf_counter()
        self._writer.write(head.encode() + payload)
        status = await self._reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(status.decode())
        ttft_s, end_s, last = 0.0, 0.0, b""
        while (line := await self._reader.readline()) != b"0\r\n":  # the last chunk's length
            if not line:
                raise RuntimeError("the server closed the connection")
            if line.startswith(_EVENT) and not line.startswith(_DONE):
                end_s = perf_counter() - start
                ttft_s = ttft_s or end_s
                last = line
                if keep is not None:
                    keep(line)
        await self._reader.readline()
        event = orjson.loads(last.removeprefix(_EVENT))
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        return Served(ttft_s, end_s, event)
