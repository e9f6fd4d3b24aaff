"""One in-process runtime, used directly by an executor, and over HTTP on loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import uvicorn

from espalier.runtime.config import ServerConfig
from espalier.runtime.http.app import create_app
from espalier.runtime.http.metrics import Metrics
from espalier.runtime.http.service import Service
from espalier.runtime.messages import TokenLogprob
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk, RoleMarkers, TextPiece
from espalier.runtime.programs.executor import Executor
from tests.inprocess import InProcessRuntime, in_process_runtime

_Condition = Callable[[int], bool]

DEADLINE_S = 30.0
MAX_OPEN = 64


class ServedClient:
    """A backend: the runtime's client itself, on whose executor's loop everything runs."""

    def __init__(self, *, api_key: str | None = None) -> None:
        self.url = ""
        self.runtime: InProcessRuntime
        self.executor = Executor(self)
        self._config = ServerConfig(max_queued_requests=MAX_OPEN, api_key=api_key)
        self._context: AbstractAsyncContextManager[InProcessRuntime]
        self._server: uvicorn.Server
        self._serving: asyncio.Task[None]

    async def start(self, listener: socket.socket) -> None:
        self._context = in_process_runtime(max_open_requests=MAX_OPEN)
        self.runtime = await self._context.__aenter__()
        service = Service(
            client=self.runtime.client,
            config=self._config,
            model_name="tiny",
            model_path="models/tiny.gguf",
            metrics=Metrics(),
            started_at=time.time(),
        )
        config = uvicorn.Config(create_app(service), log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._serving
        await self._context.__aexit__(None, None, None)

    def flush(self) -> int:
        """Forget all cached tokens, so that the next program computes its own."""
        return self.executor.run(self.runtime.client.flush_cache()).result()

    def wait_until_idle(self) -> None:
        """Wait until no request is open any more."""
        self.executor.run(self._until_open(lambda num_open: num_open == 0)).result()

    def wait_until_busy(self) -> None:
        """Wait until a request is open."""
        self.executor.run(self._until_open(lambda num_open: num_open > 0)).result()

    async def _until_open(self, is_met: _Condition) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_met(self.runtime.client.num_open):
                await self.runtime.client.stats()

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        return await self.runtime.client.encode(pieces)

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        return await self.runtime.client.role_markers(roles)

    def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        return self.runtime.client.generate(call)

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        return await self.runtime.client.score(prefix, continuations)


@contextmanager
def served_client(*, api_key: str | None = None) -> Generator[ServedClient]:
    served = ServedClient(api_key=api_key)
    with socket.create_server(("127.0.0.1", 0)) as listener, served.executor:
        served.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        served.executor.run(served.start(listener)).result()
        try:
            yield served
        finally:
            served.executor.run(served.stop()).result()
