"""Runs the real scheduler, cache and planner against a clock that a model of the step time drives.

Nothing is computed and nobody sleeps: a launched step ends, in the clock's time, after as long as
the model says, and gives every sampling row the same token. The time that the scheduler itself
takes is measured, and not part of the clock's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import thread_time

from bench.step_time import StepCost
from bench.trace import TracedRequest, index_of
from espalier.radix.cache import RadixCache
from espalier.runtime.config import SchedulerConfig
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.grammar.vocabulary import Vocabulary as GrammarVocabulary
from espalier.runtime.messages import (
    SchedulingHints,
    SubmitRequests,
    TokenizedRequest,
    TokenOutput,
)
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import Sampled, SampleRow
from espalier.runtime.scheduler.sampling_rows import Vocabulary
from espalier.runtime.scheduler.scheduler import Scheduler
from espalier.runtime.scheduler.stats import SchedulerStats
from espalier.runtime.scheduler.step import Step, StepResult

OUTPUT_ID = (1 << 29) - 1  # of every token: no prompt has it
VOCABULARY = Vocabulary(width=1 << 30, size=1 << 30, eos_ids=(), visible_bytes=lambda _: b"")


@dataclass(slots=True)
class VirtualClock:
    """Seconds since the simulation began."""

    now_s: float = 0.0

    def advance_to(self, time_s: float) -> None:
        self.now_s = max(self.now_s, time_s)


class SimulatedStep:
    """A step that ends at `end_s`; see `LaunchedStep`."""

    def __init__(self, step: Step, clock: VirtualClock, start_s: float, end_s: float) -> None:
        self.step = step
        self._clock = clock
        self._start_s = start_s
        self._end_s = end_s
        self._rows: list[int] = []

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        self._rows = list(rows)

    def result(self) -> StepResult:
        self._clock.advance_to(self._end_s)
        sampled = {row: Sampled(OUTPUT_ID) for row in self._rows}
        return StepResult(sampled, device_s=self._end_s - self._start_s)

    def discard(self) -> None:
        self._clock.advance_to(self._end_s)


class SimulatedRunner:
    """A device that is busy with one step after the other.

    Notes when it first sees a prompt, and what the thread's CPU time was at the last launch.
    """

    def __init__(self, clock: VirtualClock, cost: StepCost) -> None:
        self._clock = clock
        self._cost = cost
        self._busy_until_s = 0.0
        self.admissions: dict[int, float] = {}  # by the index of the request, in their order
        self.launched_cpu_s = 0.0

    def launch(self, step: Step) -> SimulatedStep:
        self.launched_cpu_s = thread_time()
        for write in step.writes:
            index = index_of(int(write.ids[-1])) if len(write.ids) else None
            if index is not None:
                self.admissions.setdefault(index, self._clock.now_s)
        start_s = max(self._clock.now_s, self._busy_until_s)
        self._busy_until_s = start_s + self._cost.seconds(step.rows)
        return SimulatedStep(step, self._clock, start_s, self._busy_until_s)

    def close(self) -> None:
        """There is nothing to stop."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """What a round of the scheduler's loop took in CPU seconds: up to the launch, and whole."""

    plan_s: float
    round_s: float


@dataclass(slots=True)
class Life:
    """When a request came, was admitted and got its tokens, in the clock's seconds."""

    request: TracedRequest
    arrival_s: float
    token_s: list[float] = field(default_factory=list[float])
    admitted_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.arrival_s

    @property
    def wait_s(self) -> float:
        return self.admitted_s - self.arrival_s

    @property
    def itl_s(self) -> list[float]:
        return [b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gave: lives in order of arrival, indices in order of admission."""

    lives: list[Life]
    admitted: list[int]
    stats: SchedulerStats
    makespan_s: float


class Simulation:
    """One scheduler with its simulated device and clock."""

    def __init__(self, config: SchedulerConfig, cost: StepCost, pool_tokens: int) -> None:
        config.validate()
        self.clock = VirtualClock()
        self.runner = SimulatedRunner(self.clock, cost)
        self._grammars = GrammarService(Engines(GrammarVocabulary((b"x",), (), (), 32)))
        self.scheduler = Scheduler(
            config,
            RadixCache(pool_tokens),
            self.runner,
            self._grammars,
            VOCABULARY,
            self._deliver,
        )
        self._lives: dict[str, Life] = {}

    def close(self) -> None:
        self._grammars.close()

    def submit(self, requests: Iterable[TracedRequest], arrival_s: float) -> None:
        """All in one message, as if they had come at `arrival_s`, which has passed."""
        messages: list[TokenizedRequest] = []
        for request in requests:
            self._lives[str(request.index)] = Life(request, arrival_s)
            messages.append(_message(request))
        self.scheduler.inbox.put(SubmitRequests(tuple(messages)))

    def step(self) -> CpuTime:
        """One round of the scheduler's loop, and what it cost."""
        started = self.runner.launched_cpu_s = thread_time()
        self.scheduler.step()
        return CpuTime(self.runner.launched_cpu_s - started, thread_time() - started)

    def run(self, requests: list[TracedRequest], duration_s: float) -> Run:
        """The whole trace, whose arrivals are spread over `duration_s`."""
        upcoming = [(request.arrival * duration_s, request) for request in requests]
        upcoming.reverse()
        while upcoming or not self.scheduler.idle:
            if upcoming and self.scheduler.idle:
                self.clock.advance_to(upcoming[-1][0])
            while upcoming and upcoming[-1][0] <= self.clock.now_s:
                arrival_s, request = upcoming.pop()
                self.submit([request], arrival_s)
            self.step()
        return self._result()

    def _result(self) -> Run:
        for index, time_s in self.runner.admissions.items():
            self._lives[str(index)].admitted_s = time_s
        return Run(
            list(self._lives.values()),
            list(self.runner.admissions),
            self.scheduler.stats,
            self.clock.now_s,
        )

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            life = self._lives[output.rid]
            life.token_s += [self.clock.now_s] * len(output.ids)
            if output.finish is not None:
                assert output.finish.kind == "length", (output.rid, output.finish)
                assert len(life.token_s) == life.request.num_new, (output.rid, life.token_s)


def _message(request: TracedRequest) -> TokenizedRequest:
    return TokenizedRequest(
        rid=str(request.index),
        input_ids=request.ids,
        sampling=SamplingParams(
            max_new_tokens=request.num_new, temperature=0.0, seed=0, ignore_eos=True
        ),
        hints=SchedulingHints(
            priority=request.priority, stages_left=request.turns_left, tenant=request.tenant
        ),
    )
