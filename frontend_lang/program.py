"""The `@function` decorator: a Python function that becomes a program."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from espalier.runtime.programs.executor import ProgramHost

from .batch import Batch, BatchOptions, NumThreads, OnError
from .defaults import default_backend
from .job import Job
from .run import ProgramRun
from .sampling import SAMPLING_NAMES, SamplingArgs
from .state import ProgramState

P = ParamSpec("P")
R = TypeVar("R")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OPTIONS = SAMPLING_NAMES | {"backend", "stream"}


@dataclass(frozen=True, slots=True)
class _Options:
    """How to run: everything of `run` and `bind` that is not the function's own."""

    backend: ProgramHost | None = None
    sampling: SamplingArgs = field(default_factory=SamplingArgs)


class Function(Generic[P, R]):
    """A program. `run` starts it; called with a state it runs inside another program."""

    def __init__(
        self, body: Callable[Concatenate[ProgramState, P], R], options: _Options | None = None
    ) -> None:
        self._body = body
        self._options = options or _Options()
        self._signature = _checked_signature(body)
        self._is_async = inspect.iscoroutinefunction(body)
        update_wrapper(self, body)

    def __call__(self, s: ProgramState, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run inline, on the state of another program; an async function's result is awaited."""
        if not isinstance(s, ProgramState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "this is a program: call .run(...), or, inside another program, pass that "
                "program's state first"
            )
        return self._body(s, *args, **kwargs)

    def bind(self, *, backend: ProgramHost | None = None, **kwargs: Any) -> Function[..., R]:
        """This program with some of its arguments, and of the options of `run`, given."""
        options, own = self._split(backend, kwargs)
        body = cast(Callable[..., R], partial(self._body, **own))
        return Function(body, options)

    def run(
        self, *args: Any, backend: ProgramHost | None = None, stream: bool = False, **kwargs: Any
    ) -> ProgramRun:
        """Run the program and wait for its end; raises its error.

        `kwargs` are the function's own arguments and sampling arguments (`max_tokens`,
        `temperature`, ...), which hold where a `gen` has none of its own. With `stream` this
        returns at once and the function runs in a thread of its own; errors are raised by
        what is read from the run.
        """
        if self._is_async and not stream and _in_event_loop():
            raise RuntimeError("inside an event loop an async program is run by run_async()")
        job = self._job(args, backend, kwargs, may_block=True)
        if stream:
            job.run.start_thread(job.execute)
        else:
            job.execute()
        return job.run

    async def run_async(
        self, *args: Any, backend: ProgramHost | None = None, stream: bool = False, **kwargs: Any
    ) -> ProgramRun:
        """`run` for callers with an event loop. An async function runs on that loop, any
        other in a thread of its own."""
        job = self._job(args, backend, kwargs, may_block=False)
        if not self._is_async:
            job.run.start_thread(job.execute)
            if not stream:
                await job.run.sync_async()
        elif stream:
            job.run.start_task(job.execute_async())
        else:
            await job.execute_async()
        return job.run

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        backend: ProgramHost | None = None,
        num_threads: NumThreads = "auto",
        progress_bar: bool = False,
        on_error: OnError = "raise",
        generator_style: Literal[False] = False,
        **sampling: Any,
    ) -> list[ProgramRun]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        backend: ProgramHost | None = None,
        num_threads: NumThreads = "auto",
        progress_bar: bool = False,
        on_error: OnError = "raise",
        generator_style: Literal[True],
        **sampling: Any,
    ) -> Iterator[ProgramRun]: ...
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        backend: ProgramHost | None = None,
        num_threads: NumThreads = "auto",
        progress_bar: bool = False,
        on_error: OnError = "raise",
        generator_style: bool = False,
        **sampling: Any,
    ) -> list[ProgramRun] | Iterator[ProgramRun]:
        """Run the program once for each item; the runs are in the order of the items.

        An item has the function's own arguments, and sampling arguments that hold over those
        given here. At most `num_threads` ("auto": 64) run at one time: functions that block
        each in a thread, async ones all on one loop. An item's error, of bad arguments too,
        is its run's (`run.error()`) and stops no other; when all have ended, `on_error`
        "raise" raises `BatchFailed`. With `generator_style` this is an iterator of the runs,
        each as soon as it and those before it have ended; the next ones run meanwhile.
        """
        if self._is_async and _in_event_loop():
            raise RuntimeError("inside an event loop an async program is run by run_batch_async()")
        options = BatchOptions(num_threads, progress_bar, on_error)
        batch = self._batch(batch_kwargs, backend, sampling, options, may_block=True)
        return batch.iterate() if generator_style else batch.run()

    async def run_batch_async(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        backend: ProgramHost | None = None,
        num_threads: NumThreads = "auto",
        progress_bar: bool = False,
        on_error: OnError = "raise",
        **sampling: Any,
    ) -> list[ProgramRun]:
        """`run_batch` for callers with an event loop. Async functions run on that loop."""
        options = BatchOptions(num_threads, progress_bar, on_error)
        batch = self._batch(batch_kwargs, backend, sampling, options, may_block=False)
        return await batch.run_async()

    def _batch(
        self,
        items: Sequence[Mapping[str, Any]],
        backend: ProgramHost | None,
        sampling: dict[str, Any],
        options: BatchOptions,
        *,
        may_block: bool,
    ) -> Batch:
        shared = _Options(
            backend or self._options.backend or default_backend(),
            SamplingArgs(**sampling).over(self._options.sampling),
        )
        function = Function(self._body, shared)

        def prepare(item: object) -> Job:
            try:
                return function._job((), None, _checked_item(item), may_block=may_block)
            except Exception as error:
                run = function._open_run(shared, may_block)
                return Job.refused(run, error, is_async=self._is_async)

        return Batch(items, prepare, self._is_async, options)

    def _job(
        self,
        args: tuple[Any, ...],
        backend: ProgramHost | None,
        kwargs: dict[str, Any],
        *,
        may_block: bool,
    ) -> Job:
        options, own = self._split(backend, kwargs)
        self._signature.bind(None, *args, **own)
        call = cast(Callable[..., R], self._body)

        def body(state: ProgramState) -> object:
            return call(state, *args, **own)

        return Job(self._open_run(options, may_block), body, options.sampling, self._is_async)

    def _open_run(self, options: _Options, may_block: bool) -> ProgramRun:
        executor = (options.backend or default_backend()).executor
        return ProgramRun(executor.open_stream(), may_block=may_block)

    def _split(
        self, backend: ProgramHost | None, kwargs: dict[str, Any]
    ) -> tuple[_Options, dict[str, Any]]:
        """The options over the bound ones, and the arguments that are the function's own."""
        given = {name: kwargs[name] for name in kwargs if name in SAMPLING_NAMES}
        own = {name: kwargs[name] for name in kwargs if name not in SAMPLING_NAMES}
        sampling = SamplingArgs(**given).over(self._options.sampling)
        return _Options(backend or self._options.backend, sampling), own


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _checked_item(item: object) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise TypeError(f"an item of a batch is a mapping of arguments, not {item!r}")
    return dict(cast(Mapping[str, Any], item))


def _checked_signature(body: Callable[..., Any]) -> inspect.Signature:
    if not callable(body):
        raise TypeError(f"@function decorates a function, not {body!r}")
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise TypeError("a program's first parameter is its state: def program(s, ...)")
    clash = _OPTIONS.intersection(signature.parameters)
    if clash:
        raise TypeError(f"parameters named as options of run(): {', '.join(sorted(clash))}")
    return signature


@overload
def function(body: Callable[Concatenate[ProgramState, P], R], /) -> Function[P, R]: ...
@overload
def function(
    *, backend: ProgramHost | None = None, **sampling: Any
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Function[P, R]]: ...
def function(
    body: Callable[Concatenate[ProgramState, P], R] | None = None,
    /,
    *,
    backend: ProgramHost | None = None,
    **sampling: Any,
) -> Function[P, R] | Callable[[Callable[Concatenate[ProgramState, P], R]], Function[P, R]]:
    """Make a program of a function whose first parameter is the state.

    `@function`, or `@function(backend=..., temperature=..., ...)` with options of `run`.
    """
    options = _Options(backend, SamplingArgs(**sampling))

    def decorate(body: Callable[Concatenate[ProgramState, P], R]) -> Function[P, R]:
        return Function(body, options)

    return decorate if body is None else decorate(body)
