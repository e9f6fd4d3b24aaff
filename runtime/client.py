"""The tokenizer process's side of every request: validates, submits, hands out what comes back.

Knows no sockets and no HTTP: messages to the scheduler go through `send`, those for it come
to `deliver`. Everything here happens on one event loop. It is a programs' `Backend`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from .errors import InvalidRequest, Unavailable
from .ipc.to_scheduler import (
    Abort,
    FlushCache,
    ReportStats,
    SchedulerNews,
    SendSnapshot,
    Submit,
)
from .ipc.to_tokenizer import CacheFlushed, StatsReport, TextBatch, TokenizerNews
from .messages import FinishReason, TokenizedRequest, TokenLogprob, Usage
from .programs.backend import GenerateCall, GenerateChunk, RoleMarkers, TextPiece
from .scheduler.limits import RequestLimits
from .scheduler.stats import SchedulerStats
from .submission import expand_each, failure_of, scoring_requests
from .tokenizer.tokenizer import Tokenizer

T = TypeVar("T")

_RESEND_S = 0.05


class RuntimeClient:
    """Requests of one tokenizer process.

    `send` queues a message for the scheduler process and says whether there was room.
    At most `max_open_requests` sequences are open at one time; more raise `Unavailable`.
    Before `serve`, and from `new_epoch` to the next `serve`, every request does. `timed`: last
    chunks have the request's times.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        send: Callable[[SchedulerNews], bool],
        *,
        max_open_requests: int,
        epoch: int = 0,
        timed: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._send = send
        self._max_open = max_open_requests
        self._num_open = 0
        self._epoch = epoch
        self._timed = timed
        self._limits: RequestLimits | None = None
        self._why_not = "the runtime is starting"
        self._is_ending = False
        self._open: dict[str, _OpenCall] = {}
        self._rids: dict[str, str] = {}  # of the callers' own names
        self._unsent: deque[SchedulerNews] = deque()
        self._next_call = 0
        self._flushes: dict[int, asyncio.Future[int]] = {}
        self._reports: dict[int, asyncio.Future[SchedulerStats]] = {}
        # One thread: the order of arrival is kept, and one core is left for the rest.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="espalier-tokenize")

    # -- what the launcher says ------------------------------------------------------------

    @property
    def limits(self) -> RequestLimits:
        """What can be served. Raises `Unavailable` while nothing can."""
        if self._limits is None:
            raise Unavailable(self._why_not)
        return self._limits

    @property
    def num_open(self) -> int:
        """Sequences that have not had their last output."""
        return self._num_open

    def serve(self, epoch: int, limits: RequestLimits) -> None:
        """All processes of `epoch` are ready."""
        self.new_epoch(epoch, "a process ended")
        if epoch == self._epoch and not self._is_ending:
            self._limits = limits

    def new_epoch(self, epoch: int, why: str) -> None:
        """A process died: every open request ends with an error that says so."""
        if epoch <= self._epoch:
            return
        self._epoch, self._limits = epoch, None
        if not self._is_ending:
            self._why_not = f"the runtime recovers: {why}"
        self._unsent.clear()
        self._end_all(
            FinishReason(kind="error", message=f"{why}; send the request again", lost=True)
        )

    def refuse(self, why: str) -> None:
        """Take no more requests, for good; those that are open go on."""
        self._limits, self._why_not, self._is_ending = None, why, True

    def close(self) -> None:
        """End open requests with an abort; no more are taken."""
        self.refuse("the runtime is shutting down")
        self.abort_all()
        self._end_all(FinishReason(kind="abort", message=self._why_not, shutdown=True))
        self._worker.shutdown(wait=False)  # what waits for it is told that nothing is taken

    # -- what the scheduler and the detokenizer say ------------------------------------------

    def deliver(self, news: TokenizerNews) -> None:
        """Take a message of this epoch; older ones are dropped, newer ones can't come first:
        they answer what this process asked."""
        if news.epoch != self._epoch:
            return
        match news:
            case TextBatch(_, outputs):
                for output in outputs:
                    call = self._open.get(output.rid)
                    if call is not None:
                        call.put(output.chunk)
            case CacheFlushed(_, number, num_tokens):
                _resolve(self._flushes.pop(number, None), num_tokens)
            case StatsReport(_, number, stats):
                _resolve(self._reports.pop(number, None), stats)

    # -- asking ----------------------------------------------------------------------------

    async def run_in_worker(self, work: Callable[[], T]) -> T:
        """Do `work` off the event loop: tokenising, templates, checks of schemas."""
        try:
            done = asyncio.get_running_loop().run_in_executor(self._worker, work)
        except RuntimeError:  # it is shut down
            raise Unavailable(self._why_not) from None
        return await done

    async def encode(self, pieces: Sequence[TextPiece]) -> list[int]:
        """See `Backend.encode`; refuses text that is too long for the model by its bytes."""
        max_bytes = self.limits.context_len * self.tokenizer.max_token_bytes
        num_bytes = sum(len(piece.text) for piece in pieces)
        if num_bytes > max_bytes:
            raise InvalidRequest(
                f"the text is longer than the model's context length of "
                f"{self.limits.context_len} tokens, whatever its tokens: it has {num_bytes} "
                f"characters",
                param="text",
            )
        return await self.run_in_worker(lambda: self.tokenizer.encode_pieces(pieces))

    async def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """See `Backend.role_markers`."""
        return self.tokenizer.role_markers(roles)

    async def open(
        self, calls: Sequence[GenerateCall], names: Sequence[str | None] = ()
    ) -> OpenCalls:
        """Submit `calls` together, or none of them; what comes back is to be closed.

        `names` are the callers' own ids for them, by which `abort` finds them. Raises
        `InvalidRequest` for a bad call or a name that is in use, `Unavailable`.
        """
        limits = self.limits
        if len(calls) > 1 or any(call.constraint is not None for call in calls):
            expanded = await self.run_in_worker(lambda: list(expand_each(calls, limits)))
        else:
            expanded = list(expand_each(calls, limits))
        return self._submit(expanded, names)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
        """See `Backend.generate`."""
        opened = await self.open([call])
        try:
            while opened.num_open:
                yield _checked((await opened.next())[1])
        finally:
            opened.close()

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[TokenLogprob]]:
        """See `Backend.score`: one request a continuation, planned together, one shared prefix."""
        requests = scoring_requests(prefix, continuations, self.limits)
        opened = self._submit([requests], ())
        scores: dict[int, list[TokenLogprob]] = {}
        try:
            while opened.num_open:
                chunk = _checked((await opened.next())[1])
                if chunk.prompt_logprobs is not None:
                    scores[chunk.choice] = list(chunk.prompt_logprobs)
        finally:
            opened.close()
        return [scores[index] for index in range(len(requests))]

    def abort(self, name: str) -> bool:
        """End the open call with exactly this name; whether there is one."""
        rid = self._rids.get(name)
        if rid is not None:
            self._post(Abort(self._epoch, rid))
        return rid is not None

    def abort_all(self) -> int:
        """End every open call; how many those are."""
        for rid in self._open:
            self._post(Abort(self._epoch, rid))
        return len(self._open)

    async def flush_cache(self, timeout_s: float = 60.0) -> int:
        """Forget every cached token that no request uses; returns how many those were."""
        return await self._ask(FlushCache, self._flushes, timeout_s)

    def send_snapshot(self) -> None:
        """Have the scheduler tell those who follow its cache all that it holds."""
        _ = self.limits  # raises while there is no scheduler
        self._post(SendSnapshot(self._epoch))

    async def stats(self, timeout_s: float = 60.0) -> SchedulerStats:
        """The scheduler's, as of its next step. Raises `Unavailable` after `timeout_s`."""
        return await self._ask(ReportStats, self._reports, timeout_s)

    # -- inside ----------------------------------------------------------------------------

    def _submit(
        self, expanded: Sequence[list[TokenizedRequest]], names: Sequence[str | None]
    ) -> OpenCalls:
        self._check_names(names)
        count = sum(map(len, expanded))
        if self._num_open + count > self._max_open:
            raise Unavailable(f"the queue is full: {self._num_open} requests are open")
        if self._limits is None:  # a process died while the worker checked
            raise Unavailable(self._why_not)
        everything = tuple(request for requests in expanded for request in requests)
        if self._timed:
            everything = tuple(msgspec.structs.replace(r, timed=True) for r in everything)
        if not self._send(Submit(self._epoch, everything)):
            raise Unavailable("the scheduler does not keep up with the requests")
        self._num_open += count
        opened = OpenCalls(count, self._close)
        for index, requests in enumerate(expanded):
            rid, name = requests[0].rid, names[index] if names else None
            self._open[rid] = _OpenCall(
                opened,
                index,
                rid,
                name,
                len(requests[0].input_ids),
                dict.fromkeys(range(len(requests)), 0),
                self._choice_ended,
            )
            opened.rids.append(rid)
            if name is not None:
                self._rids[name] = rid
        return opened

    def _check_names(self, names: Sequence[str | None]) -> None:
        given = [name for name in names if name is not None]
        for index, name in enumerate(given):
            if name in self._rids or name in given[:index]:
                raise InvalidRequest(f"Duplicate request ID: {name!r}", param="rid")

    def _end_all(self, finish: FinishReason) -> None:
        """Whoever waits for anything waits no longer."""
        for call in tuple(self._open.values()):
            call.end_all(finish)
        _fail_all(self._flushes, self._why_not)
        _fail_all(self._reports, self._why_not)

    def _choice_ended(self, call: _OpenCall) -> None:
        self._num_open -= 1
        if not call.running:
            self._forget(call)

    def _forget(self, call: _OpenCall) -> None:
        del self._open[call.rid]
        if call.name is not None:
            del self._rids[call.name]

    def _close(self, rids: Sequence[str]) -> None:
        """Nobody reads these any more: what still runs is aborted."""
        for rid in rids:
            call = self._open.get(rid)
            if call is not None:
                self._num_open -= len(call.running)
                self._forget(call)
                self._post(Abort(self._epoch, rid))

    def _post(self, message: SchedulerNews) -> None:
        """Send what must arrive, now or as soon as there is room."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._post_unsent()

    def _post_unsent(self) -> None:
        while self._unsent:
            if not self._send(self._unsent[0]):
                asyncio.get_running_loop().call_later(_RESEND_S, self._post_unsent)
                return
            self._unsent.popleft()

    async def _ask(
        self,
        question: Callable[[int, int], FlushCache | ReportStats],
        waiting: dict[int, asyncio.Future[T]],
        timeout_s: float,
    ) -> T:
        if self._limits is None:  # nobody would answer
            raise Unavailable(self._why_not)
        call, self._next_call = self._next_call, self._next_call + 1
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting[call] = reply
        try:
            self._post(question(self._epoch, call))
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise Unavailable(f"the scheduler did not answer within {timeout_s:g} s") from None
        finally:
            waiting.pop(call, None)


class OpenCalls:
    """Calls that were submitted together; their outputs come from `next` until none is open.

    Every choice of every call gets exactly one chunk with `finish` set, also when it is
    aborted (kind "abort") or its process dies (kind "error", `lost`). Close it, whatever
    happens: that aborts what still runs.
    """

    def __init__(self, num_choices: int, close: Callable[[Sequence[str]], None]) -> None:
        self.rids: list[str] = []
        """The runtime's ids of the calls, in order."""
        self.num_open = num_choices
        """Choices, over all calls, whose last chunk has not been taken yet."""
        self._close = close
        self._chunks: deque[tuple[int, GenerateChunk]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> tuple[int, GenerateChunk]:
        """The next chunk and the index of its call; while `num_open` is not 0 there is one."""
        assert self.num_open, "there are no more outputs"
        while not self._chunks:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._taken(self._chunks.popleft())

    def next_ready(self) -> tuple[int, GenerateChunk] | None:
        """The next chunk if it is there already: a slow reader may send several as one."""
        return self._taken(self._chunks.popleft()) if self._chunks else None

    def close(self) -> None:
        """Nobody reads any more. Idempotent."""
        self._close(self.rids)

    def put(self, index: int, chunk: GenerateChunk) -> None:
        """For the client: the next output."""
        self._chunks.append((index, chunk))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken(self, item: tuple[int, GenerateChunk]) -> tuple[int, GenerateChunk]:
        if item[1].finish is not None:
            self.num_open -= 1
        return item


@dataclass(slots=True)
class _OpenCall:
    """One call; `running` has the choices whose last output has not come yet, with the number
    of tokens that have."""

    opened: OpenCalls
    index: int
    rid: str
    name: str | None
    prompt_len: int
    running: dict[int, int]
    choice_ended: Callable[[_OpenCall], None]

    def put(self, chunk: GenerateChunk) -> None:
        if chunk.finish is None:
            self.running[chunk.choice] += len(chunk.ids)
        else:
            del self.running[chunk.choice]
            self.choice_ended(self)
        self.opened.put(self.index, chunk)

    def end_all(self, finish: FinishReason) -> None:
        """No more outputs will come: what has come is what is charged."""
        for choice, num_tokens in sorted(self.running.items()):
            usage = Usage(
                prompt_tokens=self.prompt_len, completion_tokens=num_tokens, cached_tokens=0
            )
            self.put(GenerateChunk(choice=choice, finish=finish, usage=usage))


def _checked(chunk: GenerateChunk) -> GenerateChunk:
    """Raises what an error or an abort means to a program."""
    if chunk.finish is not None:
        failure = failure_of(chunk.finish)
        if failure is not None:
            raise failure
    return chunk


def _resolve(reply: asyncio.Future[T] | None, value: T) -> None:
    if reply is not None and not reply.done():
        reply.set_result(value)


def _fail_all(replies: dict[int, asyncio.Future[T]], why: str) -> None:
    for reply in replies.values():
        if not reply.done():
            reply.set_exception(Unavailable(why))
