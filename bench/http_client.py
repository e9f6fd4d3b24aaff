"""A load generator that costs next to nothing: one request a connection, events only counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

import orjson

_EVENT = b"data: "
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Served:
    """What one stream gave: seconds to its first event, and its last event."""

    ttft_s: float
    last: dict[str, object]


async def stream(url: str, path: str, body: dict[str, object]) -> Served:
    """POST `body` and read events to the end. Raises if the server refuses."""
    address = urlsplit(url)
    payload = orjson.dumps(body)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    start = perf_counter()
    writer.write(head.encode() + payload)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((status + await reader.read()).decode())
    ttft_s, last = 0.0, b""
    try:
        while line := await reader.readline():
            if line.startswith(_EVENT) and not line.startswith(_DONE):
                ttft_s = ttft_s or perf_counter() - start
                last = line
    finally:
        writer.close()
    return Served(ttft_s, orjson.loads(last.removeprefix(_EVENT)))
