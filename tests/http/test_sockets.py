"""The application behind the real server, on loopback: what clients see, and when they go."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from espalier.runtime.http.app import create_app
from tests.http_serving import events_of, nothing_held, served_runtime, stats_when, when
from tests.inprocess import InProcessRuntime

LONG = {"max_new_tokens": 480, "ignore_eos": True}
DEADLINE_S = 30.0


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[InProcessRuntime, httpx.AsyncClient]]:
    async with served_runtime() as (runtime, service):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            config = uvicorn.Config(
                create_app(service),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            await when(lambda: server.started)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S
            ) as client:
                yield runtime, client
            server.should_exit = True
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
