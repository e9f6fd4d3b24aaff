"""A step on the device, and whose rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..runner.protocol import LaunchedStep
from .request import Request


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step and the request of each of its rows."""

    launched: LaunchedStep
    requests: Sequence[Request]

    @property
    def number(self) -> int:
        return self.launched.step.number

    @property
    def num_tokens(self) -> int:
        return self.launched.step.num_tokens
