"""Jobs run by killable workers: forked when needed, demoted when long, replaced when dead.

Knows no constraints: what a job is about, and what its answer means, is its caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import EngineClosed, RequestFailed
from ..ipc.compiling import JOBS, Answer, Broken, Job, OutOfMemory
from .birth import Newborn, spawn_zygote
from .nursery import Nursery, Worker, WorkerLost
from .turns import Turn, Turns
from .vocabulary import Vocabulary

T = TypeVar("T")

_ATTEMPTS = 2
_JOBS_OF_A_WORKER = 64  # what jobs leave behind in its memory must not pile up


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """max_job_bytes: the memory of one job. After `demote_after_s` a job has what nobody else
    wants of the processors, and others begin; of such jobs `max_demoted` run at a time."""

    max_job_bytes: int = 1 << 30
    demote_after_s: float = 0.3
    max_demoted: int = 3


class WorkerPool:
    """For one event loop, on a thread that lives as long as the pool is open."""

    def __init__(
        self, vocabulary: Vocabulary, limits: PoolLimits, first: Newborn | None = None
    ) -> None:
        """first: a zygote that there is already. Others are started as needed."""
        self._vocabulary = vocabulary
        self._limits = limits
        self._first = first
        self._turns = Turns(limits.max_demoted)
        self._starting: asyncio.Task[Nursery] | None = None
        self._idle: Worker | None = None
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        return self._turns.num_waiting

    @property
    def num_running(self) -> int:
        return self._turns.num_running

    async def start(self) -> None:
        """Wait until workers can be forked. Raises `RequestFailed` if that can't be."""
        await self._persist(self._nursery)

    async def run(self, job: Job, *, patience_s: float) -> Answer:
        """Kills the worker if it is cancelled.

        Raises `WorkerCrashed`, or `TimeoutError` if the job has not begun in `patience_s`;
        `RequestFailed` where the machinery fails over and over, `EngineClosed` after `close`.
        """
        message = JOBS.encode(job)
        async with self._turns.take(patience_s) as turn:
            return await self._persist(lambda: self._attempt(message, turn))

    async def close(self) -> None:
        """Kill them all. Whoever still waits finds out."""
        self._is_closed = True
        if self._first is not None:
            self._first.end()
        if self._starting is None:
            return
        self._starting.cancel()
        [found] = await asyncio.gather(self._starting, return_exceptions=True)
        if isinstance(found, Nursery):
            await found.end()

    async def _attempt(self, job: bytes, turn: Turn) -> Answer:
        worker = await self._take_worker()
        timer = asyncio.get_running_loop().call_later(
            self._limits.demote_after_s, self._demote, worker, turn
        )
        try:
            answer = await worker.ask(job)
        except BaseException:
            worker.kill()
            raise
        finally:
            timer.cancel()
        if turn.is_demoted or isinstance(answer, OutOfMemory | Broken):
            worker.retire()
        else:
            self._put_back(worker)
        return answer

    def _demote(self, worker: Worker, turn: Turn) -> None:
        worker.demote()
        self._turns.demote(turn)

    async def _take_worker(self) -> Worker:
        nursery = await self._nursery()
        worker, self._idle = self._idle, None
        return nursery.fork() if worker is None or worker.is_dead else worker

    def _put_back(self, worker: Worker) -> None:
        if self._idle is not None or worker.num_jobs >= _JOBS_OF_A_WORKER:
            worker.retire()
        else:
            self._idle = worker

    async def _nursery(self) -> Nursery:
        """The zygote that runs, or a new one once it is ready."""
        if self._is_closed:
            raise EngineClosed("the grammar compiler is closed")
        if self._starting is None or _is_over(self._starting):
            self._starting = asyncio.get_running_loop().create_task(self._open())
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._starting.cancelled():
                raise EngineClosed("the grammar compiler was closed") from None
            raise

    async def _open(self) -> Nursery:
        zygote, self._first = self._first, None
        if zygote is None:
            try:
                zygote = spawn_zygote(self._vocabulary, self._limits.max_job_bytes)
            except OSError as error:  # the system gives no more processes, or memory
                raise WorkerLost(f"it could not be started: {error}") from error
        return await Nursery.open(zygote)

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Once more where a zygote or an idle worker died: that is no fault of the job."""
        why = ""
        for _ in range(_ATTEMPTS):
            try:
                return await attempt()
            except WorkerLost as error:
                why = str(error)
        raise RequestFailed(f"the grammar compiler does not work: {why}")


def _is_over(starting: asyncio.Task[Nursery]) -> bool:
    """It did not start, or it has died since."""
    if not starting.done():
        return False
    return starting.cancelled() or starting.exception() is not None or starting.result().is_dead
