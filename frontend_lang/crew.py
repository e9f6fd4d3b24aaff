"""Who executes the jobs of a batch, so many at a time; knows nothing of their order.

A job's error is its run's and nobody else's. Whatever stops the batch, no job outlives its
crew's `close`.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol

import uvloop

from .job import Job


class Crew(Protocol):
    """Executes jobs, in the context of whoever hands them in."""

    def start(self, job: Job) -> Future[None]:
        """Execute `job` as soon as there is room; done when it has ended, well or not."""
        ...

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        ...


@contextmanager
def own_error() -> Generator[None]:
    """For a job, whose error is its run's outcome: also if it is `sys.exit`, or a cancellation."""
    with suppress(Exception, KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        yield


class Threads:
    """For functions that block: `size` threads at most, one for each job that runs."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="espalier-batch")
        self._lock = threading.Lock()  # guards the two below
        self._running: set[Job] = set()
        self._is_closed = False

    def start(self, job: Job) -> Future[None]:
        return self._pool.submit(contextvars.copy_context().run, self._execute, job)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            running = tuple(self._running)
        for job in running:
            job.run.cancel()
        self._pool.shutdown(cancel_futures=True)

    def _execute(self, job: Job) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._running.add(job)
        try:
            with own_error():
                job.execute()
        finally:
            with self._lock:
                self._running.remove(job)


class LoopThread:
    """For async functions whose caller has no loop: all on one loop, in a thread of its own."""

    def __init__(self, size: int) -> None:
        self._bound = asyncio.Semaphore(size)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="espalier-batch", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(execute_within(self._bound, job), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def execute_within(bound: asyncio.Semaphore, job: Job) -> None:
    """Execute an async job on this loop, as a task of its own, when `bound` has room."""
    async with bound:
        with own_error():
            await job.execute_async()
