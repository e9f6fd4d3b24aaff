"""The `@function` decorator: a Python function that becomes a program."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from espalier.runtime.programs.executor import ProgramHost

from .defaults import default_backend
from .run import ProgramRun
from .sampling import SAMPLING_NAMES, SamplingArgs
from .state import ProgramState

P = ParamSpec("P")
R = TypeVar("R")
_Body = Callable[[ProgramState], object]
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
        run, body, defaults = self._prepare(args, backend, kwargs, may_block=True)
        if stream:
            run.start_thread(self._blocking(run, body, defaults))
        else:
            self._blocking(run, body, defaults)()
        return run

    async def run_async(
        self, *args: Any, backend: ProgramHost | None = None, stream: bool = False, **kwargs: Any
    ) -> ProgramRun:
        """`run` for callers with an event loop. An async function runs on that loop, any
        other in a thread of its own."""
        run, body, defaults = self._prepare(args, backend, kwargs, may_block=False)
        if not self._is_async:
            run.start_thread(self._blocking(run, body, defaults))
            if not stream:
                await run.sync_async()
        elif stream:
            run.start_task(run.execute_async(_awaitable(body), defaults))
        else:
            await run.execute_async(_awaitable(body), defaults)
        return run

    def _blocking(self, run: ProgramRun, body: _Body, defaults: SamplingArgs) -> Callable[[], None]:
        """What runs the whole program in the thread that calls it."""
        if self._is_async:
            return lambda: asyncio.run(run.execute_async(_awaitable(body), defaults))
        return lambda: run.execute(body, defaults)

    def _prepare(
        self,
        args: tuple[Any, ...],
        backend: ProgramHost | None,
        kwargs: dict[str, Any],
        *,
        may_block: bool,
    ) -> tuple[ProgramRun, _Body, SamplingArgs]:
        options, own = self._split(backend, kwargs)
        self._signature.bind(None, *args, **own)
        executor = (options.backend or default_backend()).executor
        call = cast(Callable[..., R], self._body)
        run = ProgramRun(executor.open_stream(), may_block=may_block)
        return run, lambda state: call(state, *args, **own), options.sampling

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


def _awaitable(body: _Body) -> Callable[[ProgramState], Awaitable[object]]:
    return cast(Callable[[ProgramState], Awaitable[object]], body)


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
