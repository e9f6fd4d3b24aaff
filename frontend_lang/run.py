"""One run of a program: executes the function, and is what its caller holds and reads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from espalier.runtime.errors import EngineClosed, RequestAborted
from espalier.runtime.programs.stream import Stream
from espalier.runtime.programs.values import Segment, Variable
from espalier.runtime.programs.waiting import Log, wait, wait_async

from .reading import blocking_wait
from .sampling import SamplingArgs
from .state import ProgramState
from .view import StateView


class ProgramRun(StateView):
    """A run, finished or (`stream=True`) still going on. Read-only.

    Variables are those at the end of the run, so reading one waits for the end. `text_iter`
    follows the run while it goes on, and raises the run's error where it ends with one.
    """

    def __init__(self, stream: Stream, *, may_block: bool) -> None:
        super().__init__(stream, may_block=may_block)
        self._outcome: Future[object] = Future()
        self._task: asyncio.Task[None] | None = None

    @property
    def return_value(self) -> Any:
        """What the function returned; waits for the end, raises the run's error."""
        return blocking_wait(self._outcome, self._may_block)

    def sync(self) -> None:
        """Wait for the end of the run; raises its error."""
        blocking_wait(self._outcome, self._may_block)

    async def sync_async(self) -> None:
        """`sync()` for async functions."""
        await wait_async(self._outcome)

    def error(self) -> BaseException | None:
        """The error that the run ended with; waits for the end."""
        self._wait_for_end()
        return self._outcome.exception()

    def cancel(self) -> None:
        """End a run that goes on: its requests are aborted, and its next read, or its end,
        raises `RequestAborted`. Returns at once; after the end it has no effect."""
        if not self._outcome.done():
            self._stream.cancel(RequestAborted("the run was cancelled"))

    def __contains__(self, name: object) -> bool:
        self._wait_for_end()
        return super().__contains__(name)

    async def get_async(self, name: str) -> Any:
        with suppress(Exception):  # a variable from before the error can still be read
            await wait_async(self._outcome)
        return await super().get_async(name)

    def start_thread(self, program: Callable[[], None]) -> None:
        """Call `program`, which executes this run, in a thread of its own."""

        def target() -> None:
            with suppress(Exception):  # it is the run's outcome
                program()

        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(target,), name="espalier-program", daemon=True
        ).start()

    def start_task(self, program: Coroutine[Any, Any, None]) -> None:
        """Run `program`, which executes this run, as a task of the running loop."""

        async def target() -> None:
            with suppress(Exception):  # it is the run's outcome
                await program

        self._task = asyncio.get_running_loop().create_task(target())

    def execute(self, body: Callable[[ProgramState], object], defaults: SamplingArgs) -> None:
        """Run a function here. Its error, or that of its nodes, is raised, and is the run's
        outcome for those who read it."""
        state = ProgramState(self._stream, defaults, may_block=True)
        try:
            value = body(state)
            wait(self._finish())
        except BaseException as error:
            cause = self._abandon(error)
            with suppress(EngineClosed):  # then nothing runs any more
                wait(self._stream.executor.run(self._stream.lane.drain()))
            self._outcome.set_exception(cause)
            raise
        else:
            self._outcome.set_result(value)

    async def execute_async(
        self, body: Callable[[ProgramState], Awaitable[object]], defaults: SamplingArgs
    ) -> None:
        """`execute` for an async function, on the caller's loop."""
        state = ProgramState(self._stream, defaults, may_block=False)
        try:
            value = await body(state)
            await wait_async(self._finish())
        except BaseException as error:
            cause = self._abandon(error)
            with suppress(EngineClosed):  # then nothing runs any more
                await wait_async(self._stream.executor.run(self._stream.lane.drain()))
            self._outcome.set_exception(cause)
            raise
        else:
            self._outcome.set_result(value)

    def _finish(self) -> Future[None]:
        self._stream.lane.close()
        return self._stream.executor.run(self._stream.lane.finish())

    def _abandon(self, error: BaseException) -> Exception:
        if isinstance(error, Exception):
            cause = error
        else:
            cause = RequestAborted(f"the program was interrupted: {type(error).__name__}")
            cause.__cause__ = error
        self._stream.abandon(cause)
        return cause

    def _wait_for_end(self) -> None:
        with suppress(Exception):
            self.sync()

    def _reading(self) -> AbstractContextManager[None]:
        """What the caller has met, the program has not."""
        return nullcontext()

    def _segments(self) -> Iterator[Segment]:
        yield from self._stream.lane.segments.read(self._wait)
        self.sync()

    async def _segments_async(self) -> AsyncIterator[Segment]:
        async for segment in self._stream.lane.segments.read_async():
            yield segment
        await self.sync_async()

    def _text_log(self, name: str) -> Log[str]:
        for segment in self._segments():
            if segment.name == name:
                return segment.text
        return super()._text_log(name)

    async def _text_log_async(self, name: str) -> Log[str]:
        async for segment in self._segments_async():
            if segment.name == name:
                return segment.text
        return super()._text_log(name)

    def _variable(self, name: str) -> Variable:
        self._wait_for_end()
        if not super().__contains__(name):
            self.sync()
        return super()._variable(name)
