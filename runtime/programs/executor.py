"""Runs programs: one event loop in one thread, for any number of streams at once.

Knows lanes only as things that are running; what they do is theirs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import uvloop

from ..errors import EngineClosed
from .backend import Backend
from .lane import Lane
from .stream import Stream
from .values import UsageMeter
from .waiting import wait

T = TypeVar("T")


class ProgramHost(Protocol):
    """What programs can be run on: it owns an executor, and closes it when it closes."""

    @property
    def executor(self) -> Executor: ...


class Executor:
    """Owns the loop on which `backend` is called. The thread starts with the first node.

    `at_end` is awaited on the loop when the last program has ended, if the loop ever ran.
    Threads: `open_stream`, `post`, `run` and `close` are for any thread but the loop's own;
    the rest is for the loop.
    """

    def __init__(
        self, backend: Backend, *, at_end: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self.backend = backend
        self._at_end = at_end
        self.usage = UsageMeter()
        self._lock = threading.Lock()  # guards loop and is_closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._calls: set[Future[Any]] = set()
        self._running: dict[asyncio.Task[None], Lane] = {}

    @property
    def executor(self) -> Executor:
        """Itself: programs can be run on an executor as on the engine that owns one."""
        return self

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the executor's own loop."""
        return threading.current_thread() is self._thread

    def open_stream(self) -> Stream:
        """The state of a new program."""
        return Stream.root(self)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` on the loop, after what was posted before."""
        with self._lock:
            self._open_loop().call_soon_threadsafe(callback, *args)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the loop, after what was posted before."""
        with self._lock:
            try:
                call = asyncio.run_coroutine_threadsafe(coroutine, self._open_loop())
            except EngineClosed:
                coroutine.close()
                raise
            self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def close(self) -> None:
        """End every running program with `EngineClosed`, then the loop. Idempotent."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return  # there is no loop, or no more; a forked process has none of its parent's
        if is_first:
            ended = asyncio.run_coroutine_threadsafe(self._shut_down(), loop)
            ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
            wait(ended)  # if that is interrupted, the loop ends all the same
        thread.join()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self, lane: Lane, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` of `lane` as a task; `close` stops the lane and waits for it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running[task] = lane
        task.add_done_callback(self._running.pop)
        return task

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise EngineClosed("the engine is closed; it runs no more programs")
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="espalier-executor", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _shut_down(self) -> None:
        closed = EngineClosed("the engine was closed while the program ran")
        for lane in tuple(self._running.values()):
            lane.stop(closed)
        ending = [*self._running, *map(asyncio.wrap_future, tuple(self._calls))]
        await asyncio.gather(*ending, return_exceptions=True)
        if self._at_end is not None:
            await self._at_end()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
