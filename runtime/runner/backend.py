"""What computes a step on the device's thread; knows rows, never requests or threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from ..sampling.sampler import SampleRow
from ..scheduler.step import Step, StepResult

P = TypeVar("P")  # a step, made ready while the device still computes the one before
F = TypeVar("F")  # what a forward leaves for its sampling


class Backend(Protocol[P, F]):
    """All but `prepare` is called on one thread, in this order: a step's forward, its sampling,
    the next step's forward. After a forward that raised, there is no sampling. `use_idle_time` may
    come anywhere between them."""

    def prepare(self, step: Step) -> P:
        """What can be done at once, on the scheduler's thread."""
        ...

    def forward(self, prepared: P) -> F:
        """Apply the step's table writes and compute its rows."""
        ...

    def sample(self, forward: F, rows: Mapping[int, SampleRow]) -> StepResult:
        """Sample rows by their index in the step, and enter their tokens into the table."""
        ...

    def use_idle_time(self) -> bool:
        """Some milliseconds of what makes later steps shorter; returns whether there is more."""
        ...
