"""The state that a program writes: `s += ...`, variables, roles and forks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import overload

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.ir import (
    Append,
    Fork,
    Gen,
    RoleBegin,
    RoleEnd,
    Select,
)
from espalier.runtime.programs.stream import Stream
from espalier.runtime.programs.waiting import wait_async

from .branches import Branches, CopyBlock
from .expressions import (
    Expr,
    Generation,
    Joined,
    Role,
    RoleBeginning,
    RoleEnding,
    Selection,
    Text,
    as_expr,
)
from .origin import origin
from .reading import blocking_wait, reading
from .sampling import SamplingArgs
from .view import StateView


class ProgramState(StateView):
    """The first argument of a program. Statements return at once; reads wait.

    In an async function a read that would block raises `RuntimeError`: await its `_async`
    form.
    """

    def __init__(self, stream: Stream, defaults: SamplingArgs, *, may_block: bool) -> None:
        super().__init__(stream, may_block=may_block)
        self._defaults = defaults

    def __iadd__(self, other: Expr | str) -> ProgramState:
        for part in _parts(as_expr(other)):
            self._append(part)
        return self

    def __setitem__(self, name: str, value: object) -> None:
        """Set a variable; it does not enter the text."""
        self._stream.assign(name, value)

    @overload
    def system(self) -> RoleBlock: ...
    @overload
    def system(self, content: Expr | str) -> None: ...
    def system(self, content: Expr | str | None = None) -> RoleBlock | None:
        """Append a system message; without content, a context manager around it."""
        return self._role("system", content)

    @overload
    def user(self) -> RoleBlock: ...
    @overload
    def user(self, content: Expr | str) -> None: ...
    def user(self, content: Expr | str | None = None) -> RoleBlock | None:
        """Append a user message; without content, a context manager around it."""
        return self._role("user", content)

    @overload
    def assistant(self) -> RoleBlock: ...
    @overload
    def assistant(self, content: Expr | str) -> None: ...
    def assistant(self, content: Expr | str | None = None) -> RoleBlock | None:
        """Append an assistant message; without content, a context manager around it."""
        return self._role("assistant", content)

    def fork(self, size: int = 1) -> Branches:
        """Open `size` branches that go on from here at the same time."""
        if isinstance(size, bool) or not isinstance(size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"size must be an integer, not {size!r}")
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        forked = self._stream.fork(Fork(size), origin=origin())
        states = [
            ProgramState(stream, self._defaults, may_block=self._may_block)
            for stream in forked.streams
        ]
        return Branches(self._stream, forked, states, may_block=self._may_block)

    def copy(self) -> CopyBlock:
        """A context manager around one branch, joined at its end (`async with` as well)."""
        return CopyBlock(self.fork)

    def sync(self) -> None:
        """Wait until all statements so far are done, without those of branches."""
        with reading(self._stream.lane.record):
            blocking_wait(self._stream.executor.run(self._stream.lane.sync()), self._may_block)

    async def sync_async(self) -> None:
        """`sync()` for async functions."""
        with reading(self._stream.lane.record):
            await wait_async(self._stream.executor.run(self._stream.lane.sync()))

    def error(self) -> BaseException | None:
        """The error that ended this state, if one has by now."""
        error = self._stream.lane.error
        if error is not None:
            self._stream.lane.record.acknowledge(error)
        return error

    def _role(self, role: Role, content: Expr | str | None) -> RoleBlock | None:
        if content is None:
            return RoleBlock(self, role)
        self += Joined((RoleBeginning(role), as_expr(content), RoleEnding(role)))
        return None

    def _append(self, part: Expr) -> None:
        submit, place = self._stream.submit, origin()
        match part:
            case Text(text, is_control):
                submit(Append(text, is_control), origin=place)
            case RoleBeginning(role):
                submit(RoleBegin(role), origin=place)
            case RoleEnding(role):
                if self._stream.open_role != role:
                    raise InvalidRequest(
                        f"role {role!r} ends, but the open one is {self._stream.open_role!r}"
                    )
                submit(RoleEnd(), origin=place)
            case Generation():
                node = Gen(
                    name=part.name,
                    sampling=part.sampling.params(self._defaults, part.n),
                    constraint=part.constraint,
                    logprobs=part.logprobs,
                )
                submit(node, origin=place, parse=part.parse)
            case Selection(name=name, choices=choices, method=method):
                submit(Select(name=name, choices=choices, method=method), origin=place)
            case _:
                raise TypeError(f"a program can't append {part!r}")


def _parts(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Joined):
        for part in expr.parts:
            yield from _parts(part)
    else:
        yield expr


class RoleBlock:
    """`with s.user(): ...`: what is appended inside is the message."""

    def __init__(self, state: ProgramState, role: Role) -> None:
        self._state = state
        self._role: Role = role

    def __enter__(self) -> None:
        self._state += RoleBeginning(self._role)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._state += RoleEnding(self._role)
