"""Serves an in-process library over HTTP: streamed completions over token ids, nothing else.

Runs in a peer's own environment: only the standard library is imported. The main thread steps
the library, another one serves HTTP. Ids go out as ids, which spares the peer its detokenizer.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

_HOST = "127.0.0.1"


class Library(Protocol):
    """What generates tokens. Called by one thread only."""

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
    tokens: asyncio.Queue[list[int]]  # belongs to the event loop


def serve(library: Library, port: int, gather_s: float = 0.0) -> None:
    """Serve for ever. An idle library waits until no request has come for `gather_s`."""
    inbox: queue.SimpleQueue[_Request] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(lambda r, w: _connection(r, w, inbox.put), _HOST, port)
    )
    threading.Thread(target=loop.run_forever, daemon=True).start()
    print(f"listening on {server.sockets[0].getsockname()}", flush=True)
    _step_for_ever(library, inbox, loop, gather_s)


def _step_for_ever(
    library: Library,
    inbox: queue.SimpleQueue[_Request],
    loop: asyncio.AbstractEventLoop,
    gather_s: float,
) -> None:
    open_requests: dict[int, tuple[_Request, int]] = {}  # with the tokens that are missing
    next_key = 0
    while True:
        for request in _arrived(inbox, idle=not open_requests, gather_s=gather_s):
            library.add(next_key, request.prompt, request.new, request.schema)
            open_requests[next_key] = (request, request.new)
            next_key += 1
        outputs: list[tuple[asyncio.Queue[list[int]], list[int]]] = []
        for key, tokens in library.step():
            if key not in open_requests:  # it has all its tokens already
                continue
            request, missing = open_requests.pop(key)
            if tokens is not None and missing > len(tokens):
                open_requests[key] = (request, missing - len(tokens))
            outputs.append((request.tokens, tokens or []))
        loop.call_soon_threadsafe(_deliver, outputs)


def _arrived(
    inbox: queue.SimpleQueue[_Request], *, idle: bool, gather_s: float
) -> Iterable[_Request]:
    """What is there now; if `idle`, wait for a first one, and for those close behind it."""
    if idle:
        yield inbox.get()
    while True:
        try:
            yield inbox.get(timeout=gather_s) if idle and gather_s else inbox.get_nowait()
        except queue.Empty:
            return


def _deliver(outputs: list[tuple[asyncio.Queue[list[int]], list[int]]]) -> None:
    for destination, tokens in outputs:
        destination.put_nowait(tokens)


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
