"""Serves an in-process library over HTTP: streamed completions over token ids, nothing else.

Runs in a peer's own environment: only the standard library is imported. One thread does all, the
library's steps between those of the event loop: beside a library that computes without a pause, a
second thread gets the interpreter too late, and tokens go out in bursts. Ids go out as ids, which
spares the peer its detokenizer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

_HOST = "127.0.0.1"


class Library(Protocol):
    """What generates tokens."""

    def add(self, key: int, prompt: list[int], new: int, schema: str | None) -> None:
        """Begin a request of exactly `new` tokens, greedily; or of JSON of a schema, which may
        end before."""
        ...

    def step(self) -> Iterable[tuple[int, list[int] | None]]:
        """Compute one step of all requests begun: their keys, with the tokens they got; None of
        one that has ended, if it had fewer than asked for."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: list[int]
    new: int
    schema: str | None
    tokens: asyncio.Queue[list[int]]


def serve(library: Library, port: int, gather_s: float = 0.0) -> None:
    """Serve for ever. An idle library waits until no request has come for `gather_s`."""
    asyncio.run(_serve(library, port, gather_s))


async def _serve(library: Library, port: int, gather_s: float) -> None:
    inbox: asyncio.Queue[_Request] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda r, w: _connection(r, w, inbox.put_nowait), _HOST, port
    )
    print(f"listening on {server.sockets[0].getsockname()}", flush=True)
    open_requests: dict[int, tuple[_Request, int]] = {}  # with the tokens that are missing
    next_key = 0
    while True:
        async for request in _arrived(inbox, idle=not open_requests, gather_s=gather_s):
            library.add(next_key, request.prompt, request.new, request.schema)
            open_requests[next_key] = (request, request.new)
            next_key += 1
        for key, tokens in library.step():
            if key not in open_requests:  # it has all its tokens already
                continue
            request, missing = open_requests.pop(key)
            if tokens is not None and missing > len(tokens):
                open_requests[key] = (request, missing - len(tokens))
            request.tokens.put_nowait(tokens or [])
        await asyncio.sleep(0)  # connections write what they got, and read what has come


async def _arrived(
    inbox: asyncio.Queue[_Request], *, idle: bool, gather_s: float
) -> AsyncIterator[_Request]:
    """What is there now; if `idle`, wait for a first one, and for those close behind it."""
    if idle:
        yield await inbox.get()
    while True:
        try:
            if idle and gather_s:
                yield await asyncio.wait_for(inbox.get(), gather_s)
            else:
                yield inbox.get_nowait()
        except (TimeoutError, asyncio.QueueEmpty):
            return


async def _connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, submit: Callable[[_Request], None]
) -> None:
    """One request after the other, until the client closes."""
    try:
        while head := await _head(reader):
            length = head.get("content-length")
            if length is None:  # a question about health
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                body = cast("dict[str, object]", json.loads(await reader.readexactly(int(length))))
                await _stream(writer, body, submit)
            await writer.drain()
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Header fields by their names in lower case; empty if the client has closed."""
    fields: dict[str, str] = {}
    first = await reader.readline()
    if first:
        fields["request"] = first.decode()
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


async def _stream(
    writer: asyncio.StreamWriter, body: dict[str, object], submit: Callable[[_Request], None]
) -> None:
    prompt, new = cast("list[int]", body["prompt"]), cast("int", body["max_tokens"])
    schema = json.dumps(body["json_schema"]) if "json_schema" in body else None
    request = _Request(prompt, new, schema, asyncio.Queue())
    submit(request)
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    got = 0
    while got < new and (tokens := await request.tokens.get()):
        got += len(tokens)
        choice = {"index": 0, "text": "", "token_ids": tokens, "finish_reason": None}
        _send_event(writer, json.dumps({"choices": [choice]}))
    usage = {"prompt_tokens": len(prompt), "completion_tokens": got}
    _send_event(writer, json.dumps({"choices": [], "usage": usage}))
    _send_event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")


def _send_event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
