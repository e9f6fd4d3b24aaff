"""The HTTP application over the in-process runtime: plain requests, and ASGI driven by hand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import Message, Scope

from espalier.runtime.config import ServerConfig
from espalier.runtime.http.app import create_app
from espalier.runtime.http.metrics import Metrics
from espalier.runtime.http.service import Service
from espalier.runtime.http.tracing import Tracing
from espalier.runtime.scheduler.control import ReportStats
from espalier.runtime.scheduler.stats import SchedulerStats
from tests.inprocess import InProcessRuntime, in_process_runtime

MODEL_NAME = "tiny"
MAX_OPEN = 64
DEADLINE_S = 30.0


def service_of(
    runtime: InProcessRuntime, *, tracing: Tracing | None = None, **options: Any
) -> Service:
    return Service(
        client=runtime.client,
        config=ServerConfig(max_queued_requests=MAX_OPEN, **options),
        model_name=MODEL_NAME,
        model_path="models/tiny.gguf",
        metrics=Metrics(),
        started_at=time.time(),
        tracing=tracing,
    )


class Serving:
    """One application and its runtime, on an event loop that runs while a call does."""

    def __init__(self, runner: asyncio.Runner, runtime: InProcessRuntime, service: Service):
        self.runner, self.runtime, self.service = runner, runtime, service
        self.app = create_app(service)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.client.request(method, path, timeout=DEADLINE_S, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def ok(self, path: str, body: object) -> Any:
        """The JSON of an answer that went well."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def serving(
    *, scheduler: Mapping[str, Any] | None = None, tracing: Tracing | None = None, **options: Any
) -> Generator[Serving]:
    """`options` are of the server's configuration, `scheduler` of its scheduler's."""
    with asyncio.Runner() as runner:
        context = in_process_runtime(
            max_open_requests=MAX_OPEN, timed=tracing is not None, **(scheduler or {})
        )
        runtime = runner.run(context.__aenter__())
        try:
            served = Serving(runner, runtime, service_of(runtime, tracing=tracing, **options))
            yield served
            runner.run(served.client.aclose())
        finally:
            runner.run(context.__aexit__(None, None, None))


@asynccontextmanager
async def served_runtime(**options: Any) -> AsyncGenerator[tuple[InProcessRuntime, Service]]:
    """For tests that are coroutines; `options` are of the scheduler's configuration."""
    async with in_process_runtime(max_open_requests=MAX_OPEN, **options) as runtime:
        yield runtime, service_of(runtime)


class Exchange:
    """One request to an ASGI application, driven step by step."""

    def __init__(self, app: FastAPI, path: str, body: object, *, whole: bool = True) -> None:
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        self._holds: asyncio.Event | None = None
        self.blocked = asyncio.Event()
        data = json.dumps(body).encode()
        piece = data if whole else data[: len(data) // 2]
        self._to_app.put_nowait({"type": "http.request", "body": piece, "more_body": not whole})
        self.task = asyncio.ensure_future(app(_scope(path), self._receive, self._send))

    async def _receive(self) -> Message:
        message = await self._to_app.get()
        if message["type"] == "http.disconnect":
            self._to_app.put_nowait(message)  # whoever asks again hears it again, as of servers
        return message

    async def _send(self, message: Message) -> None:
        if self._holds is not None:
            self.blocked.set()
            await self._holds.wait()
        self._from_app.put_nowait(message)

    def stop_reading(self) -> None:
        """From now on nothing can be sent: the client reads no more."""
        self._holds = asyncio.Event()

    def read_on(self) -> None:
        assert self._holds is not None
        self._holds.set()
        self._holds = None

    def disconnect(self) -> None:
        if self._holds is not None:
            self.read_on()  # as servers do
        self._to_app.put_nowait({"type": "http.disconnect"})

    async def message(self) -> Message:
        async with asyncio.timeout(DEADLINE_S):
            return await self._from_app.get()

    async def event(self) -> bytes:
        """The next body piece."""
        message = await self.message()
        if message["type"] == "http.response.start":
            message = await self.message()
        body: bytes = message.get("body", b"")
        return body

    async def end(self) -> None:
        """The application has returned."""
        async with asyncio.timeout(DEADLINE_S):
            await self.task

    def num_unread(self) -> int:
        return self._from_app.qsize()


def _scope(path: str) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "server": ("test", 80),
        "client": ("test", 1),
    }


async def stats_when(
    runtime: InProcessRuntime, condition: Callable[[SchedulerStats], bool]
) -> SchedulerStats:
    """The scheduler's stats as soon as they meet the condition."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition(stats := await runtime.client.stats()):
            pass
    return stats


def nothing_held(stats: SchedulerStats) -> bool:
    """No request is left, and no slot is used by one."""
    used = stats.pool_tokens - stats.free_tokens - stats.evictable_tokens
    return stats.num_running == 0 and stats.num_waiting == 0 and used == 0


async def when(condition: Callable[[], bool]) -> None:
    """Let everything else run until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def stopped_scheduler(runtime: InProcessRuntime) -> Generator[None]:
    """The scheduler's loop stands still inside."""
    stopped, go = threading.Event(), threading.Event()

    def stop(_: SchedulerStats) -> None:
        stopped.set()
        assert go.wait(DEADLINE_S)

    runtime.scheduler.inbox.put(ReportStats(stop))
    assert stopped.wait(DEADLINE_S)
    try:
        yield
    finally:
        go.set()


def events_of(text: str) -> list[Any]:
    """The JSON of all events of a whole stream; its end is checked."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""], text[-200:]
    return [json.loads(event) for event in events[:-2]]
