"""The seam between the scheduler and whatever computes its steps.

An implementation may run a step as many calls or as one native call; the scheduler only
sees this. Steps run strictly in the order of their launches. In each layer the KV of all
rows is written before any row attends, so rows may read slots that the same step fills. A
step that was launched before the failure of the one before it was known does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..sampling.sampler import SampleRow
from ..scheduler.step import Step, StepResult


class LaunchedStep(Protocol):
    """A step on its way. Call `sample` exactly once, then `result`; or `discard`."""

    @property
    def step(self) -> Step: ...

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        """Have the given rows (by index in the step) sampled; returns at once."""
        ...

    def result(self) -> StepResult:
        """Wait for the sampled tokens. Raises whatever the forward or the sampler raised.

        A step that failed may have applied its table writes, all, some or none of them.
        """
        ...

    def discard(self) -> None:
        """Wait until the device no longer touches this step; its results are lost."""
        ...


class Runner(Protocol):
    """Runs steps on a device that owns the token and slot tables and the KV pool."""

    def launch(self, step: Step) -> LaunchedStep:
        """Start the forward pass of `step`; returns at once."""
        ...

    def close(self) -> None:
        """Stop the device; nothing may be launched afterwards."""
        ...
