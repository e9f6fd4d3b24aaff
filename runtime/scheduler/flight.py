"""A step on the device, and whose rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..runner.protocol import LaunchedStep
from .request import Request


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step and the request of each of its rows.

    replaced: rows whose next tokens were known before they could be sampled. void: those of
    them whose last token was respelled, so that what they compute of it is of no use.
    """

    launched: LaunchedStep
    requests: Sequence[Request]
    replaced: set[int] = field(default_factory=set[int])
    void: set[int] = field(default_factory=set[int])

    @property
    def number(self) -> int:
        return self.launched.step.number

    @property
    def num_tokens(self) -> int:
        return self.launched.step.num_tokens

    def samples(self, index: int) -> bool:
        """Whether a token is sampled after the row."""
        return self.launched.step.rows[index].samples and index not in self.replaced

    def settled_len(self, index: int) -> int:
        """How far the request of this row has sound KV once this step has settled."""
        return self.launched.step.rows[index].end - (index in self.void)

    def replace_sampling(self, request: Request) -> int | None:
        """What this step was to sample for the request is known already; its row, if it was to."""
        for index in self.launched.step.sampling_rows:
            if self.requests[index] is request:
                self.replaced.add(index)
                request.num_pending -= 1
                return index
        return None
