"""A scheduler process whose books are broken under load: it stays, and so does the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.integration.servers import (
    DEADLINE_S,
    events,
    generate_body,
    is_idle,
    launcher,
    seconds_until,
    stats,
)

pytestmark = pytest.mark.alone

SABOTEUR = Path(__file__).resolve().parents[1] / "saboteur"


async def stream(url: str, num_open: list[int]) -> object:
    """The last event of a stream; `num_open` counts those that have begun."""
    last: object = None
    async with (
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client,
        client.stream("POST", "/generate", json=generate_body(1500, stream=True)) as response,
    ):
        async for event in events(response):
            num_open[0] += last is None
            last = event or last
    return last


async def break_under_load(url: str, pid: int) -> list[object]:
    num_open = [0]
    streams = [asyncio.create_task(stream(url, num_open)) for _ in range(4)]
    while num_open[0] < 4:
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGUSR1)
    return list(await asyncio.wait_for(asyncio.gather(*streams), DEADLINE_S))


def test_broken_books_end_what_runs_and_the_next_request_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(SABOTEUR), *sys.path])
    with launcher() as server:
        pids = server.pids
        for last in asyncio.run(break_under_load(server.url, pids["scheduler"])):
            assert "emptied its cache" in str(last), last
        answer = httpx.post(f"{server.url}/generate", json=generate_body(4), timeout=DEADLINE_S)
        assert answer.json()["meta_info"]["completion_tokens"] == 4
        seconds_until(lambda: is_idle(server.url))
        assert stats(server.url)["num_rebuilds"] == 1
        httpx.post(f"{server.url}/flush_cache", timeout=DEADLINE_S)
        now = stats(server.url)
        assert now["free_tokens"] == now["pool_tokens"]
        assert server.pids == pids, "a process was replaced"


def test_health_and_readiness_hold_through_a_long_prefill() -> None:
    """Seconds of it, by steps far shorter than the few that the watchdog allows."""

    async def run(url: str) -> tuple[int, int]:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S * 3) as client:
            body = generate_body(1) | {"text": "a long river and " * 300}
            long = asyncio.create_task(client.post("/generate", json=body))
            num_asked = 0
            while not long.done():
                for path in ("/health", "/ready"):
                    assert (await client.get(path, timeout=5.0)).status_code == 200
                num_asked += 1
                await asyncio.sleep(0.1)
            return (await long).status_code, num_asked

    with launcher(watchdog_timeout_s=4.0, max_chunk_len=16) as server:
        pids = server.pids
        code, num_asked = asyncio.run(run(server.url))
        assert code == 200 and num_asked > 5
        assert server.pids == pids, "a process was replaced"
