"""Many runs of one program: bounded concurrency, results in order, each with its own error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from espalier.runtime.errors import EspalierError
from espalier.runtime.programs.waiting import wait, wait_async

from .crew import Crew, LoopThread, Threads, execute_within
from .job import Job
from .progress import progress
from .run import ProgramRun

OnError = Literal["raise", "keep"]
NumThreads = int | Literal["auto"]

_AUTO_THREADS = 64
_AHEAD = 4  # how many times what runs may wait to be taken from an iterator


class BatchFailed(EspalierError):
    """Some runs of a batch ended with an error; all have ended. `__cause__` is the first error.

    `failed` has the runs that failed, by their index; `runs` all of them, in order, None where
    the caller has had them from an iterator.
    """

    def __init__(
        self, failed: dict[int, ProgramRun], num_items: int, runs: list[ProgramRun] | None
    ) -> None:
        index, run = next(iter(failed.items()))
        cause = run.error()
        super().__init__(
            f"{len(failed)} of {num_items} programs failed; the first, item {index}: "
            f"{type(cause).__name__}: {cause}"
        )
        self.failed = failed
        self.runs = runs
        self.__cause__ = cause


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a batch is run; see `Function.run_batch`."""

    num_threads: NumThreads
    progress_bar: bool
    on_error: OnError

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error must be 'raise' or 'keep', not {self.on_error!r}")
        size: object = self.num_threads
        is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 1
        if not is_size and size != "auto":
            raise ValueError(f"num_threads must be 'auto' or at least 1, not {size!r}")

    def size(self, num_items: int) -> int:
        """How many run at one time."""
        limit = _AUTO_THREADS if self.num_threads == "auto" else self.num_threads
        return max(1, min(limit, num_items))


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of one batch; `prepare` makes a job of any, also of a bad one."""

    items: Sequence[object]
    prepare: Callable[[object], Job]
    is_async: bool
    options: BatchOptions

    def run(self) -> list[ProgramRun]:
        """All runs, in order, when the last has ended."""
        runs = list(self._ended_runs(len(self.items)))
        self._raise_failures(dict(enumerate(runs)), runs)
        return runs

    def iterate(self) -> Iterator[ProgramRun]:
        """The runs in order, each when it has ended, while later ones run on."""
        failed: dict[int, ProgramRun] = {}
        with closing(self._ended_runs(_AHEAD * self._size)) as runs:
            for index, run in enumerate(runs):
                if run.error() is not None:
                    failed[index] = run
                yield run
        self._raise_failures(failed, None)

    async def run_async(self) -> list[ProgramRun]:
        """`run` for callers with an event loop, on which async functions run."""
        with progress(len(self.items), is_shown=self.options.progress_bar) as advance:
            if self.is_async:
                runs = await self._on_this_loop(advance)
            else:
                runs = await self._in_threads(advance)
        self._raise_failures(dict(enumerate(runs)), runs)
        return runs

    @property
    def _size(self) -> int:
        return self.options.size(len(self.items))

    def _ended_runs(self, max_ahead: int) -> Generator[ProgramRun]:
        """`max_ahead`: how many may have been started, and not been taken from here."""
        crew: Crew = LoopThread(self._size) if self.is_async else Threads(self._size)
        started: deque[tuple[ProgramRun, Future[None]]] = deque()
        jobs = map(self.prepare, self.items)
        try:
            with progress(len(self.items), is_shown=self.options.progress_bar) as advance:
                while True:
                    for job in islice(jobs, max_ahead - len(started)):
                        started.append((job.run, _started(crew, job, advance)))
                    if not started:
                        return
                    run, done = started.popleft()
                    wait(done)
                    yield run
        finally:
            crew.close()

    async def _on_this_loop(self, advance: Callable[[], None]) -> list[ProgramRun]:
        bound = asyncio.Semaphore(self._size)
        runs: list[ProgramRun] = []
        async with asyncio.TaskGroup() as group:
            for job in map(self.prepare, self.items):
                task = group.create_task(execute_within(bound, job))
                task.add_done_callback(lambda _: advance())
                runs.append(job.run)
        return runs

    async def _in_threads(self, advance: Callable[[], None]) -> list[ProgramRun]:
        crew = Threads(self._size)
        try:
            jobs = [self.prepare(item) for item in self.items]
            for done in [_started(crew, job, advance) for job in jobs]:
                await wait_async(done)
        finally:
            await asyncio.to_thread(crew.close)
        return [job.run for job in jobs]

    def _raise_failures(
        self, candidates: dict[int, ProgramRun], runs: list[ProgramRun] | None
    ) -> None:
        if self.options.on_error == "keep":
            return
        failed = {i: run for i, run in candidates.items() if run.error() is not None}
        if failed:
            raise BatchFailed(failed, len(self.items), runs)


def _started(crew: Crew, job: Job, advance: Callable[[], None]) -> Future[None]:
    done = crew.start(job)
    done.add_done_callback(lambda _: advance())
    return done
