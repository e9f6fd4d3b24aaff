"""The branches of a fork as a program sees them: a sequence of states that can be joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, get_args, overload

from espalier.runtime.errors import RequestAborted
from espalier.runtime.programs.ir import Join, JoinMode
from espalier.runtime.programs.stream import Forked, Stream
from espalier.runtime.programs.waiting import wait_async

from .expressions import Expr
from .origin import origin
from .reading import blocking_wait, reading

if TYPE_CHECKING:
    from .state import ProgramState


class Branches(Sequence["ProgramState"]):
    """The branches of one fork, in order.

    An error in one cancels the others: each read of any of them, and `join`, raises
    `BranchError` with the index of the one that failed. Branches that are never joined are
    waited for at the end of the run, which raises their error if nothing has before.
    """

    def __init__(
        self, parent: Stream, forked: Forked, states: Sequence[ProgramState], *, may_block: bool
    ) -> None:
        self._parent = parent
        self._forked = forked
        self._states = tuple(states)
        self._may_block = may_block

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | Sequence[ProgramState]:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Only what `branches[i] += ...` needs."""
        if state is not self._states[index]:
            raise TypeError("a branch can be appended to, but not replaced")

    def __len__(self) -> int:
        return len(self._states)

    def __iadd__(self, other: Expr | str) -> Branches:
        """Append the same to each branch."""
        for state in self._states:
            state += other
        return self

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Wait for the branches, end them, and give the parent what they made.

        "gather_variable": each variable that some branch set becomes the list of the
        branches' values, in their order, None where a branch has none.
        "concate_and_append": what each branch appended is appended to the parent, in order;
        variables stay with the branches.
        """
        node = _join(mode)
        with reading(self._parent.lane.record):
            done = self._parent.executor.run(self._forked.group.finish())
            blocking_wait(done, self._may_block)
        self._parent.join(node, self._forked, origin=origin())

    async def join_async(self, mode: JoinMode = "gather_variable") -> None:
        """`join` for async functions."""
        node, place = _join(mode), origin()
        with reading(self._parent.lane.record):
            await wait_async(self._parent.executor.run(self._forked.group.finish()))
        self._parent.join(node, self._forked, origin=place)

    def abandon(self, error: BaseException) -> None:
        """Cancel the branches; the program goes on without them."""
        cause = error if isinstance(error, Exception) else RequestAborted("cancelled")
        self._parent.abandon_branches(self._forked, cause)


def _join(mode: JoinMode) -> Join:
    if mode not in get_args(JoinMode):
        raise ValueError(f"mode must be one of {', '.join(get_args(JoinMode))}, not {mode!r}")
    return Join(mode)


class CopyBlock:
    """`with s.copy() as branch: ...`: one branch, joined at the end of the block."""

    def __init__(self, fork: Callable[[], Branches]) -> None:
        self._branches = fork()

    def __enter__(self) -> ProgramState:
        return self._branches[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._branches.join()
        else:
            self._branches.abandon(error)

    async def __aenter__(self) -> ProgramState:
        return self._branches[0]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self._branches.join_async()
        else:
            self._branches.abandon(error)
