"""A launched step whose result is another one's, changed: for runners that wrap a real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from espalier.runtime.runner.protocol import LaunchedStep
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.step import Step, StepResult


class ChangedStep(LaunchedStep):
    """`change` is called with what the inner step gave, when its results are taken."""

    def __init__(self, inner: LaunchedStep, change: Callable[[StepResult], StepResult]) -> None:
        self._inner = inner
        self._change = change

    @property
    def step(self) -> Step:
        return self._inner.step

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        self._inner.sample(rows)

    def result(self) -> StepResult:
        return self._change(self._inner.result())

    def discard(self) -> None:
        self._inner.discard()
