"""The HTTP application on a loopback port, with the openai client in front of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import openai
import uvicorn
from fastapi import FastAPI

from tests.http_serving import Serving, serving
from tests.inprocess import InProcessRuntime

T = TypeVar("T")


@dataclass(frozen=True)
class OpenAIServing:
    """One application: `post` reaches it without sockets, `openai` over loopback."""

    plain: Serving
    openai: openai.AsyncOpenAI

    @property
    def runtime(self) -> InProcessRuntime:
        return self.plain.runtime

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.plain.runner.run(work)

    def post(self, path: str, body: object) -> httpx.Response:
        return self.plain.post(path, body)


@contextmanager
def openai_serving() -> Generator[OpenAIServing]:
    with serving() as plain:
        context = _client_of(plain.app)
        client = plain.runner.run(context.__aenter__())
        try:
            yield OpenAIServing(plain, client)
        finally:
            plain.runner.run(context.__aexit__(None, None, None))


@asynccontextmanager
async def _client_of(app: FastAPI) -> AsyncGenerator[openai.AsyncOpenAI]:
    with socket.create_server(("127.0.0.1", 0)) as bound:  # connections queue from here on
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        try:
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                yield client
        finally:
            server.should_exit = True
            await serving
