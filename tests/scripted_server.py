"""An HTTP server that answers its requests from a script, byte by byte as the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reply:
    """The bytes of one answer; `closes`: the connection is closed after them.

    With `hold` the client has to leave first: then `left` is set.
    """

    data: bytes
    closes: bool = False
    hold: bool = False


@dataclass(frozen=True)
class Received:
    """One request; `connection` counts from 0."""

    connection: int
    head: str
    body: bytes

    @property
    def line(self) -> str:
        return self.head.partition("\r\n")[0]


def reply(body: bytes, status: str = "200 OK", headers: str = "") -> Reply:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return Reply(head.encode() + body)


def streamed(*pieces: bytes, ends: bool = True, hold: bool = False) -> Reply:
    """A chunked answer; without `ends` the connection breaks inside."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return Reply(head + body + (b"0\r\n\r\n" if ends else b""), closes=not ends, hold=hold)


@dataclass
class ScriptedServer:
    """The replies are used up in the order of the requests."""

    url: str
    replies: list[Reply]
    received: list[Received] = field(default_factory=list[Received])
    left: threading.Event = field(default_factory=threading.Event)
    num_connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.num_connections = self.num_connections, self.num_connections + 1
        try:
            while head := await _head_of(reader):
                body = await reader.readexactly(_length_of(head))
                self.received.append(Received(connection, head, body))
                answer = self.replies.pop(0)
                writer.write(answer.data)
                await writer.drain()
                if answer.hold:
                    assert await reader.read() == b""
                    self.left.set()
                if answer.closes or answer.hold:
                    return
        finally:
            writer.close()


async def _head_of(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""


def _length_of(head: str) -> int:
    for line in head.lower().split("\r\n"):
        if line.startswith("content-length:"):
            return int(line.partition(":")[2])
    return 0


@contextmanager
def scripted_server(replies: Sequence[Reply]) -> Generator[ScriptedServer]:
    """A server on loopback, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    scripted = ScriptedServer("", list(replies))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(scripted.serve, "127.0.0.1", 0)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
