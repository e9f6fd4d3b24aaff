"""One HTTP exchange on a socket of its own, byte by byte, so that it can also go wrong.

Knows no routes. Whoever opens a connection closes it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

_MAX_LINE = 4 << 20
_READ_BYTES = 65536


class Broken(ConnectionError):
    """The server closed the connection before the answer was complete, or took none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Connection:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._headers: dict[bytes, bytes] = {}

    async def send(self, data: bytes) -> None:
        """Raises `Broken`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise Broken(f"while sending: {error}") from None

    async def status(self) -> int:
        """Read the head of the answer; its status."""
        first = await self._line()
        try:
            status = int(first.split()[1])
        except (IndexError, ValueError):
            raise Broken(f"no HTTP: {first[:80]!r}") from None
        self._headers = {}
        while line := (await self._line()).strip():
            name, _, value = line.partition(b":")
            self._headers[name.lower()] = value.strip()
        return status

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body as it comes."""
        if self._headers.get(b"transfer-encoding") != b"chunked":
            yield await self._exactly(int(self._headers.get(b"content-length", b"0")))
            return
        while size := int(await self._line(), 16):
            yield await self._exactly(size)
            await self._line()
        await self._line()

    async def reply(self) -> Reply:
        """The whole answer. Raises `Broken`."""
        status = await self.status()
        return Reply(status, b"".join([part async for part in self.parts()]))

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ConnectionError as error:
            raise Broken(f"while reading: {error}") from None
        if not line.endswith(b"\n"):
            raise Broken("closed within the answer" if line else "closed")
        return line

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise Broken(f"within the body: {error}") from None

    async def close_sending(self) -> None:
        """Close this half, and read until the server has closed the other one."""
        with suppress(OSError):  # it was faster
            self._writer.write_eof()
            while await self._reader.read(_READ_BYTES):
                pass

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(
    address: tuple[str, int], *, window: int | None = None
) -> AsyncGenerator[Connection]:
    """A new connection; `window` bounds what it takes in unread, in bytes. Raises `Broken`."""
    endpoint = socket.socket()
    endpoint.setblocking(False)
    limit = _MAX_LINE
    if window is not None:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        limit = window
    try:
        await asyncio.get_running_loop().sock_connect(endpoint, address)
        reader, writer = await asyncio.open_connection(sock=endpoint, limit=limit)
    except OSError as error:
        endpoint.close()
        raise Broken(f"while connecting: {error}") from None
    except BaseException:
        endpoint.close()
        raise
    connection = Connection(reader, writer)
    try:
        yield connection
    finally:
        connection.close()


def head(method: str, path: str, length: int, more: str = "") -> bytes:
    """The head of a request with a body of `length` bytes; `more` are whole header lines."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def posted(path: str, body: object) -> bytes:
    """A whole POST of `body` as JSON."""
    data = json.dumps(body).encode()
    return head("POST", path, len(data)) + data


async def ask(address: tuple[str, int], request: bytes) -> Reply:
    """One exchange. Raises `Broken`."""
    async with connected(address) as connection:
        await connection.send(request)
        return await connection.reply()


async def get(address: tuple[str, int], path: str) -> Reply:
    return await ask(address, head("GET", path, 0))
