"""A step on the device, and whose rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..runner.protocol import LaunchedStep
from .request import Request


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step and the request of each of its rows.

    replaced: rows whose tokens were forced before they could be sampled.
    """

    launched: LaunchedStep
    requests: Sequence[Request]
    replaced: set[int] = field(default_factory=set[int])

    @property
    def number(self) -> int:
        return self.launched.step.number

    @property
    def num_tokens(self) -> int:
        return self.launched.step.num_tokens

    def samples(self, index: int) -> bool:
        """Whether a token is sampled after the row."""
        return self.launched.step.rows[index].samples and index not in self.replaced

    def replace_sampling(self, request: Request) -> None:
        """What this step was to sample for the request is known already, if it was to."""
        for index in self.launched.step.sampling_rows:
            if self.requests[index] is request:
                self.replaced.add(index)
                request.num_pending -= 1
