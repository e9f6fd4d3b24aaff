"""Watches a scheduler and its device at work: who was busy when, as spans in seconds.

The device's spans are a backend's forwards and samplings; the scheduler's are the phases of its
loop, without what they wait for the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from espalier.runtime.runner.build import AnyBackend
from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.scheduler import Scheduler
from espalier.runtime.scheduler.step import Step, StepResult

DEVICE, SCHEDULER, WAITING = "device", "scheduler", "scheduler waits"


@dataclass(frozen=True, slots=True)
class Span:
    """`track` was busy with `name` from `begin` to `end`, for this step if it is known."""

    track: str
    name: str
    begin: float
    end: float
    step: int | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Timeline:
    """All spans, in the order of their ends."""

    spans: list[Span] = field(default_factory=list[Span])

    @contextmanager
    def span(self, track: str, name: str, step: int | None = None) -> Generator[None]:
        begin = perf_counter()
        try:
            yield
        finally:
            self.spans.append(Span(track, name, begin, perf_counter(), step))

    def write_chrome_trace(self, path: Path) -> None:
        """For chrome://tracing or ui.perfetto.dev."""
        tracks = [DEVICE, SCHEDULER, WAITING]
        origin = min(span.begin for span in self.spans)
        names: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": track}}
            for tid, track in enumerate(tracks)
        ]
        events: list[dict[str, Any]] = [
            {
                "ph": "X",
                "name": span.name,
                "pid": 0,
                "tid": tracks.index(span.track),
                "ts": (span.begin - origin) * 1e6,
                "dur": span.seconds * 1e6,
                "args": {} if span.step is None else {"step": span.step},
            }
            for span in self.spans
        ]
        path.write_text(json.dumps({"traceEvents": names + events}))


class WatchedBackend:
    """A backend on a timeline; knows by the order of calls which step it computes."""

    def __init__(self, backend: AnyBackend, timeline: Timeline) -> None:
        self._backend = backend
        self._timeline = timeline
        self._computing = -1

    def prepare(self, step: Step) -> tuple[int, object]:
        return step.number, self._backend.prepare(step)

    def forward(self, prepared: tuple[int, object]) -> object:
        self._computing, inner = prepared
        with self._timeline.span(DEVICE, "forward", self._computing):
            return self._backend.forward(inner)

    def sample(self, forward: object, rows: Mapping[int, SampleRow]) -> StepResult:
        with self._timeline.span(DEVICE, "sample", self._computing):
            return self._backend.sample(forward, rows)

    def use_idle_time(self) -> bool:
        return self._backend.use_idle_time()


class WatchedRunner:
    """A runner whose waits are on a timeline."""

    def __init__(self, runner: Runner, timeline: Timeline) -> None:
        self._runner = runner
        self._timeline = timeline

    def launch(self, step: Step) -> LaunchedStep:
        return _WatchedStep(self._runner.launch(step), self._timeline)

    def close(self) -> None:
        self._runner.close()


class _WatchedStep:
    def __init__(self, launched: LaunchedStep, timeline: Timeline) -> None:
        self._launched = launched
        self._timeline = timeline

    @property
    def step(self) -> Step:
        return self._launched.step

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        self._launched.sample(rows)

    def result(self) -> StepResult:
        with self._timeline.span(WAITING, "wait", self.step.number):
            return self._launched.result()

    def discard(self) -> None:
        self._launched.discard()


class WatchedScheduler(Scheduler):
    """A scheduler whose phases are on a timeline."""

    def __init__(self, timeline: Timeline, *parts: Any) -> None:
        super().__init__(*parts)
        self._timeline = timeline

    def _ingest(self, *, wait: bool) -> None:
        self._watched("ingest", lambda: super(WatchedScheduler, self)._ingest(wait=wait))

    def _launch(self) -> Any:
        return self._watched("plan, launch", super()._launch)

    def _settle(self, flight: Any, successor: Any) -> Any:
        settle = super()._settle
        return self._watched("settle", lambda: settle(flight, successor))

    def _sample(self, flight: Any) -> None:
        sample = super()._sample
        self._watched("masks, sample", lambda: sample(flight))

    def _emit(self) -> None:
        self._watched("emit", super()._emit)

    def _watched(self, name: str, work: Callable[[], Any]) -> Any:
        with self._timeline.span(SCHEDULER, name):
            return work()
