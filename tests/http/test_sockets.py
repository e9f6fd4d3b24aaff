"""The application behind the real server, on loopback: what clients see, and when they go."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest

from espalier.runtime.http.app import create_app
from espalier.runtime.http.server import MAX_HEAD_BYTES, HttpServer
from tests.http_serving import events_of, nothing_held, served_runtime, stats_when, when
from tests.inprocess import InProcessRuntime

LONG = {"max_new_tokens": 480, "ignore_eos": True}
DEADLINE_S = 30.0


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[InProcessRuntime, httpx.AsyncClient]]:
    async with served_runtime() as (runtime, service):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            server = HttpServer(create_app(service))
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            await when(lambda: server.started)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S
            ) as client:
                yield runtime, client
            server.stop()
            async with asyncio.timeout(DEADLINE_S):
                await serving


def test_streams_come_event_by_event() -> None:
    async def run() -> None:
        async with listening() as (_, client):
            body = {"text": "Once", "stream": True, "sampling_params": LONG}
            async with client.stream("POST", "/generate", json=body) as response:
                assert response.headers["transfer-encoding"] == "chunked"
                pieces = [piece async for piece in response.aiter_raw()]
            assert len(pieces) > 1
            last = events_of(b"".join(pieces).decode())[-1]
            assert last["meta_info"]["completion_tokens"] == 480

    asyncio.run(run())


def test_many_streams_at_one_time() -> None:
    async def run() -> None:
        async with listening() as (runtime, client):

            async def one(index: int) -> int:
                body = {
                    "input_ids": [index, 5, 6],
                    "stream": True,
                    "sampling_params": {"max_new_tokens": 10, "ignore_eos": True},
                }
                answer = await client.post("/generate", json=body)
                return len(events_of(answer.text)[-1]["output_ids"])

            assert await asyncio.gather(*map(one, range(60))) == [10] * 60
            await stats_when(runtime, nothing_held)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_frees_what_was_held(stream: bool) -> None:
    async def run() -> None:
        async with listening() as (runtime, client):
            body = {"text": ["Once", "The"], "stream": stream, "sampling_params": LONG}
            data = json.dumps(body).encode()
            reader, writer = await asyncio.open_connection(
                client.base_url.host, client.base_url.port
            )
            head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await stats_when(runtime, lambda stats: stats.num_running == 2)
            if stream:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.transport.abort()
            await when(lambda: runtime.client.num_open == 0)
            stats = await stats_when(runtime, nothing_held)
            assert stats.num_output_tokens < 2 * 480

    asyncio.run(run())


def test_a_too_long_body_is_answered_while_it_is_sent() -> None:
    async def run() -> None:
        async with listening() as (_, client):
            answer = await client.post("/generate", content=b" " * (33 << 20))
            assert answer.status_code == 413
            assert (await client.get("/health")).status_code == 200

    asyncio.run(run())


def request_bytes(body: Mapping[str, object], path: str = "/generate", head: bytes = b"") -> bytes:
    payload = json.dumps(body).encode()
    start = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(payload)}\r\n"
    return start.encode() + head + b"\r\n" + payload


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_pipelines_and_leaves_frees_its_slots(stream: bool) -> None:
    async def run() -> None:
        async with listening() as (runtime, client):
            port = client.base_url.port
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            body = {"text": "Once", "stream": stream, "sampling_params": LONG}
            writer.write(request_bytes(body) + request_bytes(body))
            await when(lambda: runtime.client.num_open > 0)
            writer.close()
            await when(lambda: runtime.client.num_open == 0)
            await stats_when(runtime, nothing_held)

    asyncio.run(run())


def test_a_pipelined_request_is_dropped_and_the_first_one_answered() -> None:
    async def run() -> None:
        async with listening() as (runtime, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            body = {"text": "Once", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
            writer.write(request_bytes(body) * 3)
            answer = await reader.read()  # to the end of the connection
            assert answer.count(b"HTTP/1.1 200") == 1 and b'"completion_tokens":3' in answer
            assert runtime.client.num_open == 0
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("part", ["path", "header", "headers"])
def test_the_head_of_a_request_is_bounded(part: str) -> None:
    async def run() -> None:
        async with listening() as (_, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            long = "a" * (8 * MAX_HEAD_BYTES)
            path = f"/generate?{long}" if part == "path" else "/generate"
            head = {"header": f"X: {long}\r\n", "headers": "X: y\r\n" * (len(long) // 6)}.get(
                part, ""
            )
            writer.write(request_bytes({"text": "a"}, path, head.encode()))
            assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            writer.close()
            body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
            assert (await client.post("/generate", json=body)).status_code == 200

    asyncio.run(run())


def test_one_connection_serves_request_after_request() -> None:
    async def run() -> None:
        async with listening() as (_, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            for count in (1, 2, 3):
                options = {"max_new_tokens": count, "ignore_eos": True}
                writer.write(request_bytes({"text": "Once " * 2000, "x": 1}))
                assert (await reader.readline()).startswith(b"HTTP/1.1 400")  # x is unknown
                await read_rest(reader)
                writer.write(request_bytes({"text": "Once", "sampling_params": options}))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                assert f'"completion_tokens":{count}'.encode() in await read_rest(reader)
            writer.close()

    asyncio.run(run())


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """The rest of a response of a known length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(int(length.partition(b":")[2]))
