"""Runs compilations on threads: single-flight, cached within a bound, with a deadline.

Equal constraints asked for at the same time are compiled once. Results stay in a least
recently used cache bounded by their bytes; errors are not kept. Each caller has a future of
its own, so that one who cancels takes nothing from the others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, Protocol, TypeVar

from ..errors import EngineClosed, InvalidRequest
from ..histogram import Histogram, HistogramData
from ..messages import Constraint
from .checks import param_of


class Compiled(Protocol):
    @property
    def num_bytes(self) -> int: ...


G = TypeVar("G", bound=Compiled)

_COMPILE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)


@dataclass(slots=True)
class _Job(Generic[G]):
    """One compilation, queued or running, and who waits for it."""

    task: Future[None] | None = None
    waiters: list[Future[G]] = field(default_factory=lambda: [])


class CompileCache(Generic[G]):
    """`get` may be called from any thread. Lock order: `_lock` is never held while a future
    is settled, because that runs the future's callbacks."""

    def __init__(
        self,
        compile_one: Callable[[Constraint], G],
        *,
        cache_bytes: int,
        num_threads: int,
        deadline_s: float,
    ) -> None:
        self._compile_one = compile_one
        self._cache_bytes = cache_bytes
        self._deadline_s = deadline_s
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._cache: OrderedDict[Constraint, G] = OrderedDict()
        self._used_bytes = 0
        self._jobs: dict[Constraint, _Job[G]] = {}
        self._compile_times = Histogram(_COMPILE_S)
        self._is_closed = False

    @property
    def compile_times(self) -> HistogramData:
        """Seconds that compilations took, those that failed too."""
        with self._lock:
            return self._compile_times.data

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def get(self, constraint: Constraint) -> Future[G]:
        """The compiled constraint, or its error.

        After `deadline_s` seconds the future fails with `InvalidRequest`. A compilation that
        runs by then can't be stopped: it ends in its thread, and its result is kept.
        """
        waiter: Future[G] = Future()
        with self._lock:
            if self._is_closed:
                raise EngineClosed("the grammar compiler is closed")
            found = self._cache.get(constraint)
            if found is None:
                self._join(constraint, waiter)
            else:
                self._cache.move_to_end(constraint)
        if found is not None:
            waiter.set_result(found)
        else:
            self._watch(constraint, waiter)
        return waiter

    def close(self) -> None:
        """Fail everyone who waits. The process can't exit before running compilations end."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in jobs:
            _fail(job.waiters, EngineClosed("the grammar compiler was closed"))

    def _join(self, constraint: Constraint, waiter: Future[G]) -> None:
        job = self._jobs.get(constraint)
        if job is None:
            job = self._jobs[constraint] = _Job()
            job.task = self._pool.submit(self._run, constraint, job)
        job.waiters.append(waiter)

    def _watch(self, constraint: Constraint, waiter: Future[G]) -> None:
        """Start the caller's deadline, and take the caller off the job at any end."""
        param = param_of(constraint)
        late = InvalidRequest(
            f"{param}: compiling takes longer than {self._deadline_s:g} s", param=param
        )
        timer = threading.Timer(self._deadline_s, _fail, ([waiter], late))
        timer.daemon = True
        timer.start()

        def leave(_: Future[G]) -> None:
            timer.cancel()
            self._leave(constraint, waiter)

        waiter.add_done_callback(leave)

    def _leave(self, constraint: Constraint, waiter: Future[G]) -> None:
        """A job that nobody waits for any more is dropped, unless it already runs."""
        with self._lock:
            job = self._jobs.get(constraint)
            if job is None or waiter not in job.waiters:
                return
            job.waiters.remove(waiter)
            if not job.waiters and job.task is not None and job.task.cancel():
                del self._jobs[constraint]

    def _run(self, constraint: Constraint, job: _Job[G]) -> None:
        started = monotonic()
        try:
            grammar = self._compile_one(constraint)
        except Exception as error:
            self._took(monotonic() - started)
            _fail(self._finish(constraint, job), error)
            return
        self._took(monotonic() - started)
        with self._lock:
            self._store(constraint, grammar)
        for waiter in self._finish(constraint, job):
            with suppress(InvalidStateError):  # cancelled or too late in the meantime
                waiter.set_result(grammar)

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._compile_times.observe(seconds)

    def _finish(self, constraint: Constraint, job: _Job[G]) -> list[Future[G]]:
        """Take the job off the books; those who still wait for it."""
        with self._lock:
            if self._jobs.get(constraint) is job:
                del self._jobs[constraint]
            return list(job.waiters)

    def _store(self, constraint: Constraint, grammar: G) -> None:
        self._cache[constraint] = grammar
        self._used_bytes += grammar.num_bytes
        while self._used_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._used_bytes -= oldest.num_bytes


def _fail(waiters: list[Future[G]], error: Exception) -> None:
    for waiter in waiters:
        with suppress(InvalidStateError):  # cancelled or settled in the meantime
            waiter.set_exception(error)
