"""The branches of one fork as a unit: the first error ends them all.

Structured concurrency: no branch outlives its group's failure, and the error, with the
branch's index, is what every reader of any of the branches gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BranchError

if TYPE_CHECKING:
    from .lane import Lane


class BranchGroup:
    """Owned by the lane that forked, until it joins. `lanes` are set once, before any runs."""

    def __init__(self) -> None:
        self.lanes: tuple[Lane, ...] = ()
        self.error: BaseException | None = None

    def branch_failed(self, index: int, cause: BaseException) -> None:
        self.stop(BranchError(index, cause))

    def stop(self, error: BaseException) -> None:
        """End all branches with `error`; only the first error counts."""
        if self.error is None:
            self.error = error
            for lane in self.lanes:
                lane.stop(error)

    async def finish(self) -> None:
        """Wait until the branches and their own branches are done; raise the group's error.

        Also after an error this waits until what was cancelled is really gone.
        """
        for index, lane in enumerate(self.lanes):
            try:
                await lane.finish()
            except Exception as error:
                if self.error is None:
                    self.branch_failed(index, error)
        if self.error is not None:
            raise self.error
