"""The in-process engine: a model behind a scheduler thread, asked for text or token ids.

Implements the programs' `Backend`. Owns the client side of every request: draws seeds,
expands n > 1, refuses what can never be served, and turns ids into text.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from .assembly import assemble
from .completion import Completion, collect
from .config import EngineConfig
from .errors import EngineClosed, EspalierError
from .loading import load_model
from .messages import (
    AbortRequest,
    Constraint,
    FinishReason,
    LogprobOptions,
    SubmitRequests,
    TokenizedRequest,
    TokenLogprob,
    TokenOutput,
)
from .programs.backend import GenerateCall, GenerateChunk, RoleMarkers, TextPiece
from .programs.executor import Executor
from .sampling.params import SamplingParams
from .scheduler.control import FlushCache, Shutdown
from .scheduler.stats import SchedulerStats
from .submission import Submission, expand, scoring_requests
from .tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Sink = Callable[[TokenOutput], None]


class Engine:
    """A model, ready to generate; safe to use from many threads and event loops.

    `model` and `options` are fields of `EngineConfig` and `SchedulerConfig`. Raises
    `ModelError` if the model can't be loaded. Close it, or use it as a context manager.
    """

    def __init__(self, model: str = "smollm2", **options: object) -> None:
        config = EngineConfig.of(model=model, **options)
        loaded = load_model(config)
        self._tokenizer = loaded.tokenizer
        self._assembly = assemble(config, loaded, self._deliver)
        # Guards the two below. Reentrant: the collector may end an abandoned `stream` anywhere.
        self._lock = threading.RLock()
        self._sinks: dict[str, Sink] = {}
        self._closed: str | None = None
        self._executor = Executor(self)
        self._thread = threading.Thread(target=self._run, name="espalier-scheduler", daemon=True)
        self._thread.start()
        atexit.register(self.close)

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
    def codec(self) -> Tokenizer:
        return self._tokenizer

    @property
    def executor(self) -> Executor:
        """Runs programs on this engine; closed with it."""
        return self._executor

    @property
    def stats(self) -> SchedulerStats:
        """Totals since the engine started."""
        return self._assembly.scheduler.stats

    def close(self) -> None:
        """End open requests with an abort, then stop all threads. Idempotent.

        Not for the engine's own threads: a program calls it from the thread it was run from.
        """
        current = threading.current_thread()
        if current is self._thread or self._executor.is_current:
            raise EspalierError("an engine can't be closed from one of its own threads")
        with self._lock:
            self._closed = self._closed or "the engine is closed"
        self._executor.close()
        self._assembly.scheduler.inbox.put(Shutdown())
        self._thread.join()
        atexit.unregister(self.close)

    def flush_cache(self) -> int:
        """Forget every cached token that no request uses; returns how many those were."""
        reply: Future[int] = Future()
        with self._lock:
            self._assert_open()
            self._assembly.scheduler.inbox.put(FlushCache(reply))
        return reply.result()

    def abort(self, rid: str) -> None:
        """End the request with exactly this id; unknown and ended ids are fine."""
        self._assembly.scheduler.inbox.put(AbortRequest(rid))

    # -- asking for tokens ---------------------------------------------------------------

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
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        call = GenerateCall(
            input_ids=ids,
            sampling=sampling or SamplingParams(),
            constraint=constraint,
            logprobs=logprobs,
        )
        return collect(self.stream(call))

    def stream(self, call: GenerateCall) -> Iterator[GenerateChunk]:
        """`generate` for callers without an event loop."""
        queue: SimpleQueue[TokenOutput] = SimpleQueue()
        submission = self._submit(expand(call, self._assembly.limits), queue.put)
        try:
            while submission.num_open:
                yield submission.take(queue.get())
        finally:
            self._forget(submission)

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        """See `Backend.encode`."""
        return self._tokenizer.encode_pieces(pieces)

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """See `Backend.role_markers`."""
        return self._tokenizer.role_markers(roles)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        """See `Backend.generate`."""
        requests = expand(call, self._assembly.limits)
        queue, sink = _loop_queue()
        submission = self._submit(requests, sink)
        try:
            while submission.num_open:
                yield submission.take(await queue.get())
        finally:
            self._forget(submission)

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        """See `Backend.score`: one request a continuation, planned together, one shared prefix."""
        requests = scoring_requests(prefix, continuations, self._assembly.limits)
        queue, sink = _loop_queue()
        submission = self._submit(requests, sink)
        scores: dict[int, list[TokenLogprob]] = {}
        try:
            while submission.num_open:
                chunk = submission.take(await queue.get())
                if chunk.prompt_logprobs is not None:
                    scores[chunk.choice] = list(chunk.prompt_logprobs)
        finally:
            self._forget(submission)
        return [scores[index] for index in range(len(requests))]

    # -- between the clients' threads and the scheduler's ----------------------------------

    def _submit(self, requests: list[TokenizedRequest], sink: Sink) -> Submission:
        submission = Submission(requests, self._tokenizer.visible_bytes)
        with self._lock:
            self._assert_open()
            self._sinks[submission.rid] = sink
            self._assembly.scheduler.inbox.put(SubmitRequests(tuple(requests)))
        return submission

    def _forget(self, submission: Submission) -> None:
        with self._lock:
            self._sinks.pop(submission.rid, None)
        if submission.num_open:
            self.abort(submission.rid)

    def _assert_open(self) -> None:
        if self._closed is not None:
            raise EngineClosed(self._closed)

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        """The scheduler's channel; runs on its thread."""
        for output in outputs:
            with self._lock:
                sink = self._sinks.get(output.rid)
            if sink is None:
                continue  # its client has gone
            try:
                sink(output)
            except RuntimeError:  # its event loop is closed
                with self._lock:
                    self._sinks.pop(output.rid, None)
                self.abort(output.rid)

    def _run(self) -> None:
        try:
            self._assembly.scheduler.run()
        except BaseException as error:
            logger.exception("the scheduler stopped")
            self._fail_all(f"the scheduler stopped: {error}")
        finally:
            self._assembly.close()

    def _fail_all(self, why: str) -> None:
        """The scheduler is gone: whoever waits for it hears why."""
        with self._lock:
            self._closed = why
            sinks = list(self._sinks.items())
        inbox = self._assembly.scheduler.inbox
        while not inbox.empty():
            message = inbox.get()
            if isinstance(message, FlushCache):
                message.reply.set_exception(EngineClosed(why))
        finish = FinishReason(kind="error", message=why)
        for rid, sink in sinks:
            try:
                sink(TokenOutput(rid=rid, finish=finish))
            except RuntimeError:
                logger.warning("the client of %s has closed its event loop", rid)


def _loop_queue() -> tuple[asyncio.Queue[TokenOutput], Sink]:
    """A queue of the running event loop, and a sink that other threads may call."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[TokenOutput] = asyncio.Queue()

    def sink(output: TokenOutput) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, output)

    return queue, sink
