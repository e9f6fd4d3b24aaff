"""Constraint in, compiled grammar out, off the caller's thread; knows no requests.

One thread of this process owns everything but the engines: an event loop over the pipes to the
compilers, which are processes of their own. The engines are a second thread's, which loads what
was compiled.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..errors import EngineClosed, InvalidRequest, Overloaded, RequestFailed
from ..histogram import HistogramData
from ..ipc.compiling import Artefact, Broken, Check, Checked, Compile, OutOfMemory, Refused
from ..messages import Constraint
from .birth import Newborn
from .checks import param_of
from .compile_cache import CompileCache
from .engines import Engines
from .guide import CompiledGrammar
from .nursery import WorkerCrashed
from .pool import PoolLimits, WorkerPool
from .stats import GrammarStats
from .validation import Verdict

# Of the deadline: who has not got a compiler by then would hardly have a grammar in time.
_PATIENCE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """cache_bytes: of compiled grammars. deadline_s: the longest that a caller waits for one;
    check_s: for a verdict."""

    cache_bytes: int = 64 << 20
    deadline_s: float = 5.0
    check_s: float = 1.0
    pool: PoolLimits = PoolLimits()


class GrammarService:
    """Compiles for one vocabulary. Nothing is started before it is needed, or `start` is called."""

    def __init__(
        self, engines: Engines, limits: CompileLimits | None = None, zygote: Newborn | None = None
    ) -> None:
        """zygote: one that has `engines`, for workers; by default one is started. It is this
        service's from now on."""
        self._limits = limits or CompileLimits()
        self._engines = engines
        # Loading takes up to a second: the loop has others' deadlines to keep meanwhile.
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="espalier-grammar-loader")
        self._pool = WorkerPool(engines.vocabulary, self._limits.pool, zygote)
        self._cache = CompileCache(
            self._compile,
            cache_bytes=self._limits.cache_bytes,
            deadline_s=self._limits.deadline_s,
        )
        self._num_crashed = self._num_out_of_memory = 0
        self._closing = asyncio.Event()
        self._lock = threading.Lock()  # guards what follows
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self) -> None:
        """Have the compilers ready soon, without waiting for them. Idempotent."""
        with self._lock:
            self._open_loop()

    def compile(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """The grammar, or why there is none: `InvalidRequest` with the words of the check or
        of the compiler, or because it took too long, too much memory, or the compiler's life;
        `Overloaded` where others kept all compilers busy; `RequestFailed`, `EngineClosed`.

        Raises `EngineClosed` after `close`. Cancelling the future is safe at any time; the
        compilation ends when the last one who waits for it has left.
        """
        found = self._cache.find(constraint)
        with self._lock:
            loop = self._open_loop()
            if found is None:
                return asyncio.run_coroutine_threadsafe(self._get(constraint), loop)
        future: Future[CompiledGrammar] = Future()
        future.set_result(found)
        return future

    def check(self, schema: str, text: str) -> Future[Verdict]:
        """Whether `text` is of this schema, by the exact validator, in a compiler's process.

        Never an error: where the verdict does not come in time, or at all, `valid` is None.
        """
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(
                    self._check(schema, text), self._open_loop()
                )
        future: Future[Verdict] = Future()
        future.set_result(Verdict(None, "it was not checked: the compilers are closed"))
        return future

    @property
    def compile_times(self) -> HistogramData:
        """Seconds from a compilation's first caller to its end, failures too; what was found
        in the cache counts for nothing."""
        return self._cache.compile_times

    @property
    def stats(self) -> GrammarStats:
        return GrammarStats(
            num_running=self._pool.num_running,
            num_queued=self._pool.num_waiting,
            num_stopped={
                "deadline": self._cache.num_late,
                "abandoned": self._cache.num_abandoned,
                "crash": self._num_crashed,
                "memory": self._num_out_of_memory,
            },
            cache_bytes=self._cache.num_bytes,
        )

    def close(self) -> None:
        """Fail all who wait with `EngineClosed`, and end every compiler. Grammars given out
        stay usable. Idempotent; not for callbacks of the futures."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if self._loop is None or self._thread is None:
            return
        if is_first:
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise EngineClosed("the grammar compiler is closed")
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name="espalier-grammar", daemon=True
            )
            self._thread.start()
        return self._loop

    # -- the loop's thread -----------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._serve())
        finally:
            with self._lock:
                self._is_closed = True
            loop.close()

    async def _serve(self) -> None:
        starting = asyncio.create_task(self._pool.start())
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._loader, self._engines.warm_up)
            await self._closing.wait()
        finally:
            self._cache.close()
            await self._pool.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(starting, *others, return_exceptions=True)
            self._loader.shutdown()

    async def _get(self, constraint: Constraint) -> CompiledGrammar:
        await self._pool.start()  # the time that this takes is no fault of the constraint
        return await self._cache.get(constraint)

    async def _compile(self, constraint: Constraint) -> CompiledGrammar:
        param = param_of(constraint)
        try:
            answer = await self._pool.run(
                Compile(constraint), patience_s=_PATIENCE * self._limits.deadline_s
            )
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{param} is not valid Unicode: {error}", param=param) from None
        except TimeoutError:
            raise Overloaded(
                "other requests keep all grammar compilers busy; try again later",
                self._limits.deadline_s,
            ) from None
        except WorkerCrashed as error:
            self._num_crashed += 1
            raise InvalidRequest(f"{param}: the compiler crashed ({error})", param=param) from None
        match answer:
            case Artefact():
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._loader, self._engines.load, answer)
            case Refused(message, field):
                raise InvalidRequest(message, param=field)
            case OutOfMemory():
                self._num_out_of_memory += 1
                allowed = self._limits.pool.max_job_bytes >> 20
                raise InvalidRequest(
                    f"{param}: compiling takes more than {allowed} MiB of memory", param=param
                )
            case Broken(message):
                self._num_crashed += 1
                raise InvalidRequest(f"{param}: the compiler failed: {message}", param=param)
            case Checked():
                raise AssertionError(answer)

    async def _check(self, schema: str, text: str) -> Verdict:
        limit_s = self._limits.check_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._pool.run(Check(schema, text), patience_s=limit_s)
        except TimeoutError:
            return Verdict(None, f"checking it takes longer than {limit_s:g} s")
        except (WorkerCrashed, RequestFailed, EngineClosed) as error:
            return Verdict(None, f"it was not checked: {error}")
        match answer:
            case Checked(valid, trouble):
                return Verdict(valid, trouble)
            case OutOfMemory():
                return Verdict(None, "checking it takes too much memory")
            case Broken(message) | Refused(message):
                return Verdict(None, f"it was not checked: {message}")
            case Artefact():
                raise AssertionError(answer)
