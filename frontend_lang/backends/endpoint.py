"""A running server, over HTTP: what programs run on, and what generates for them.

Owns an executor, on whose loop all requests are made; knows the server's routes, but not how
their bodies are written.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

from espalier.runtime.completion import Completion, collect
from espalier.runtime.errors import EngineClosed, EspalierError, Unavailable
from espalier.runtime.messages import Constraint, LogprobOptions, TokenLogprob
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk, RoleMarkers, TextPiece
from espalier.runtime.programs.executor import Executor
from espalier.runtime.sampling.params import SamplingParams, check_float

from . import native_answers as answers
from . import native_bodies as bodies
from .connections import Connections
from .marker_cache import MarkerCache
from .transport import Transport

T = TypeVar("T")


class RuntimeEndpoint:
    """A server at `base_url`, or at the Unix socket `uds`; safe to use from many threads.

    `timeout_s` is the longest that the server may be silent within a request. Requests go
    straight to the server: proxies of the environment are not asked. Nothing is sent before
    the first request. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        uds: str | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        check_float("timeout_s", timeout_s, 0.0, 86_400.0, open_low=True)
        check_float("connect_timeout_s", connect_timeout_s, 0.0, 86_400.0, open_low=True)
        connections = Connections(
            base_url, uds=uds, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s
        )
        self._transport = Transport(connections, api_key=api_key)
        self._markers = MarkerCache(self._ask_role_markers, time.monotonic)
        self._executor = Executor(self, at_end=self._transport.close)
        self._waiting: set[Future[Any]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """Runs programs on the server; closed with the endpoint."""
        return self._executor

    def close(self) -> None:
        """End running programs and requests with `EngineClosed`; the server goes on. Idempotent.

        Not for the executor's own thread.
        """
        if self._executor.is_current:
            raise EspalierError("an endpoint can't be closed from its own thread")
        for call in tuple(self._waiting):
            call.cancel()
        self._executor.close()

    # -- for callers without an event loop -----------------------------------------------------

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        logprobs: LogprobOptions | None = None,
    ) -> list[Completion]:
        """Generate and wait: one completion for each of `sampling.n` choices.

        A text prompt is tokenised as plain text, without control tokens.
        """
        return self._wait(
            self._complete(prompt, sampling or SamplingParams(), constraint, logprobs)
        )

    def flush_cache(self) -> int:
        """Forget every cached token that no request uses; returns how many those were."""
        return answers.num_flushed_of(self._wait(self._transport.call("POST", "/flush_cache")))

    def server_info(self) -> dict[str, Any]:
        """How the server is configured, and what it does now."""
        return answers.object_of(self._wait(self._transport.call("GET", "/server_info")))

    def model_info(self) -> dict[str, Any]:
        """Which model is served."""
        return answers.object_of(self._wait(self._transport.call("GET", "/model_info")))

    def health(self) -> bool:
        """Whether there is a server that takes requests now."""
        try:
            self._wait(self._transport.call("GET", "/health", patience_s=0.0))
        except Unavailable:
            return False
        return True

    # -- the programs' backend, on the executor's loop -----------------------------------------

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        """See `Backend.encode`."""
        if not pieces:
            return []
        body = bodies.tokenize_body(pieces)
        return answers.tokens_of(await self._transport.call("POST", "/tokenize", body))

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """See `Backend.role_markers`."""
        return await self._markers.get(tuple(roles))

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        """See `Backend.generate`; closing the iterator closes the connection."""
        reader, body = answers.ChunkReader(call), bodies.generate_body(call)
        async with self._transport.events("/generate", body, call.sampling.n) as events:
            async for event in events:
                yield reader.take(event)
        reader.check_ended()

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        """See `Backend.score`: one batch, planned together, one shared prefix."""
        body, count = bodies.score_body(prefix, continuations), len(continuations)
        return answers.scores_of(await self._transport.collect("/generate", body, count), count)

    # -- inside ----------------------------------------------------------------------------

    async def _ask_role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        body = bodies.role_markers_body(roles)
        return answers.role_markers_of(await self._transport.call("POST", "/role_markers", body))

    async def _complete(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        constraint: Constraint | None,
        logprobs: LogprobOptions | None,
    ) -> list[Completion]:
        if isinstance(prompt, str):
            prompt = await self.encode([TextPiece(prompt)])
        call = GenerateCall(
            input_ids=list(prompt), sampling=sampling, constraint=constraint, logprobs=logprobs
        )
        async with aclosing(self.generate(call)) as chunks:
            return collect([chunk async for chunk in chunks])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the executor's loop; interrupting the wait ends it."""
        if self._executor.is_current:
            work.close()
            raise EspalierError("this would block the executor's own thread")
        call = self._executor.run(work)
        self._waiting.add(call)
        try:
            return call.result()
        except CancelledError:
            raise EngineClosed("the endpoint was closed while the request ran") from None
        except BaseException:
            call.cancel()
            raise
        finally:
            self._waiting.discard(call)
