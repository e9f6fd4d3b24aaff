"""Runs steps on one worker thread, the "device"; knows no kernels and no requests.

The worker takes forwards and samplings in the order of their submission, so the sampler of
step k has written its tokens into the token table before the forward of step k + 1 reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from time import perf_counter
from typing import Generic, TypeVar

from ..sampling.sampler import SampleRow
from ..scheduler.step import Step, StepResult
from .backend import Backend
from .device_thread import DeviceThread

T = TypeVar("T")
P = TypeVar("P")
F = TypeVar("F")


class DeviceRunner(Generic[P, F]):
    """A backend, and the thread that alone may touch it."""

    def __init__(self, backend: Backend[P, F]) -> None:
        self._backend = backend
        self._device = DeviceThread(backend.use_idle_time)
        self._newest: DeviceStep[F] | None = None

    def launch(self, step: Step) -> DeviceStep[F]:
        newest = self._newest
        before = None if newest is None or newest.is_seen else newest
        prepared = self._backend.prepare(step)
        busy = _Stopwatch()
        forward = self.submit(busy.timed(lambda: self._forward_after(before, prepared)))
        self._newest = DeviceStep(step, forward, busy, self._submit_sampling)
        return self._newest

    def close(self) -> None:
        self._device.close()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have the device do `work`, after all that it was given before."""
        return self._device.submit(work)

    def _forward_after(self, before: DeviceStep[F] | None, prepared: P) -> F:
        """The scheduler planned a step without knowing that the one before would fail: its
        tables would be wrong, and it might write into the slots of others."""
        if before is not None and before.has_failed:
            raise RuntimeError(f"step {before.step.number}, the one before, has failed")
        return self._backend.forward(prepared)

    def _submit_sampling(
        self, forward: Future[F], rows: Mapping[int, SampleRow], busy: _Stopwatch
    ) -> Future[StepResult]:
        return self.submit(busy.timed(lambda: self._backend.sample(forward.result(), rows)))


class _Stopwatch:
    """Adds up how long some pieces of work take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, work: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            started = perf_counter()
            try:
                return work()
            finally:
                self.seconds += perf_counter() - started

        return run


class DeviceStep(Generic[F]):
    """A step on the worker thread; see `LaunchedStep`."""

    def __init__(
        self,
        step: Step,
        forward: Future[F],
        busy: _Stopwatch,
        submit_sampling: Callable[
            [Future[F], Mapping[int, SampleRow], _Stopwatch], Future[StepResult]
        ],
    ) -> None:
        self.step = step
        self._forward = forward
        self._busy = busy
        self._submit_sampling = submit_sampling
        self._sampling: Future[StepResult] | None = None
        self._is_seen = False

    @property
    def is_seen(self) -> bool:
        """Whether the scheduler knows how this step ended: what it plans now allows for it."""
        return self._is_seen

    @property
    def has_failed(self) -> bool:
        """Whether the forward raised; for the device's thread, on which it is over."""
        return self._forward.exception() is not None

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        assert self._sampling is None, f"step {self.step.number} is sampled twice"
        self._sampling = self._submit_sampling(self._forward, rows, self._busy)

    def result(self) -> StepResult:
        assert self._sampling is not None, f"step {self.step.number} was never sampled"
        try:
            return replace(self._sampling.result(), device_s=self._busy.seconds)
        finally:
            self._is_seen = True

    def discard(self) -> None:
        wait([self._forward])
        if self._sampling is not None:
            wait([self._sampling])
        self._is_seen = True
