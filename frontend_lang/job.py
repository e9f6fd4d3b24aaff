"""One run of a program, ready to be executed wherever its owner decides; knows no threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from .run import ProgramRun
from .sampling import SamplingArgs
from .state import ProgramState

Body = Callable[[ProgramState], object]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """`body` is the function with its arguments; `is_async`: what it returns is awaited.

    Executing it raises the run's error, which is its outcome as well.
    """

    run: ProgramRun
    body: Body
    defaults: SamplingArgs
    is_async: bool

    @classmethod
    def refused(cls, run: ProgramRun, error: Exception, *, is_async: bool) -> Job:
        """A run that can only end with `error`."""

        def refuse(state: ProgramState) -> object:
            raise error

        return cls(run, refuse, SamplingArgs(), is_async)

    def execute(self) -> None:
        """Execute the whole program in this thread."""
        if self.is_async:
            asyncio.run(self.execute_async())
        else:
            self.run.execute(self.body, self.defaults)

    async def execute_async(self) -> None:
        """Execute an async program on this loop."""
        body = cast(Callable[[ProgramState], Awaitable[object]], self.body)
        await self.run.execute_async(body, self.defaults)
