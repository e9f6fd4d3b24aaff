"""What the scheduler measures, on a clock that only the device moves.

A step takes one second, whatever it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.histogram import HistogramData
from espalier.runtime.messages import Regex
from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.scheduler.control import FlushCache, ReportStats
from espalier.runtime.scheduler.phases import LOOP_PHASES
from espalier.runtime.scheduler.stats import SchedulerStats
from espalier.runtime.scheduler.step import Step, StepResult
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness
from tests.local_grammars import byte_engines, byte_grammars
from tests.steps import ChangedStep

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
POOL = 64


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Timed(Runner):
    """A runner each of whose steps moves the clock by a second, when its results are taken."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    def launch(self, step: Step) -> LaunchedStep:
        return ChangedStep(self._runner.launch(step), self._timed)

    def _timed(self, result: StepResult) -> StepResult:
        self._clock.now += 1.0
        return replace(result, device_s=1.0)

    def close(self) -> None:
        self._runner.close()


MakeHarness = Callable[..., Harness]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def harness_of(clock: Clock) -> Iterator[MakeHarness]:
    """Makes a harness, without overlap unless told otherwise: a step is a turn then."""
    made: list[Harness] = []

    def make(grammars: GrammarService | None = None, **options: Any) -> Harness:
        grammars = grammars or byte_grammars()
        options = {"overlap": False, "pool_tokens": POOL, **options}
        harness = Harness(
            CONFIG, WEIGHTS, byte_vocabulary(), grammars=grammars, clock=clock, **options
        )
        harness.wrap_runner(Timed(harness.device, clock))
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()


def stats_of(harness: Harness) -> SchedulerStats:
    reports: list[SchedulerStats] = []
    harness.scheduler.inbox.put(ReportStats(reports.append))
    harness.step()
    return reports[0]


def count(data: HistogramData) -> int:
    return sum(data.counts)


def test_each_request_waits_once_whatever_happens_to_it(harness_of: MakeHarness) -> None:
    harness = harness_of(max_running_requests=1)
    harness.submit([1] * 4, max_new_tokens=3)
    harness.submit([2] * 4, max_new_tokens=3)
    harness.run()
    queue = stats_of(harness).histograms.queue
    assert count(queue) == 2
    assert queue.sum == 3.0  # the first waited for nobody, the second for three steps


def test_retracted_requests_have_waited_once(harness_of: MakeHarness) -> None:
    harness = harness_of(new_token_reserve=0.0)
    for i in range(4):
        harness.submit([i] * 6, max_new_tokens=24)
    harness.run()
    stats = stats_of(harness)
    assert stats.num_retractions > 0
    assert count(stats.histograms.queue) == 4


@pytest.mark.parametrize("overlap", [False, True])
def test_the_parts_of_a_turn(harness_of: MakeHarness, overlap: bool) -> None:
    """The clock moves in `wait` alone, and nothing is counted while there is nothing to do."""
    harness = harness_of(overlap=overlap)
    harness.submit([1, 2, 3], max_new_tokens=4)
    harness.run()
    harness.step()
    stats = stats_of(harness)
    phases = stats.histograms.phases
    assert tuple(phases) == LOOP_PHASES
    assert {phase: data.sum for phase, data in phases.items() if data.sum} == {
        "wait": float(stats.num_forward_passes)
    }
    turns = {count(data) for data in phases.values()}
    assert len(turns) == 1 and min(turns) >= stats.num_forward_passes
    assert stats.histograms.device.sum == count(stats.histograms.device) == 4


def test_the_age_of_what_is_evicted(harness_of: MakeHarness, clock: Clock) -> None:
    harness = harness_of()
    harness.submit([1] * 30, max_new_tokens=1)  # 30 tokens stay cached
    harness.run()
    clock.now += 50.0
    harness.submit([2] * 60, max_new_tokens=1)
    harness.run()
    stats = stats_of(harness)
    evicted = stats.histograms.evicted_age
    assert stats.num_evicted_tokens == count(evicted) == 30 + 60 - POOL
    assert evicted.sum == 50.0 * stats.num_evicted_tokens
    assert stats.tree_tokens == POOL


def test_a_prefix_that_is_used_again_is_young(harness_of: MakeHarness, clock: Clock) -> None:
    harness = harness_of()
    for _ in range(2):
        harness.submit([1] * 30, max_new_tokens=1)
        harness.run()
        clock.now += 50.0
    harness.submit([2] * 64, max_new_tokens=0)
    harness.run()
    evicted = stats_of(harness).histograms.evicted_age
    assert (count(evicted), evicted.sum) == (30, 30 * 50.0)


def test_compilations(harness_of: MakeHarness) -> None:
    grammars = GrammarService(byte_engines())
    harness = harness_of(grammars)
    for pattern in ("ab", "ab", "("):
        harness.submit([1], constraint=Regex(pattern), max_new_tokens=5)
        harness.run()
    assert count(stats_of(harness).histograms.grammar) == 2  # the second was there already


@pytest.mark.parametrize(
    ("goals", "expected"),
    [
        ({}, {}),
        ({"slo_ttft_s": 1.5}, {"none": 1, "ttft": 1}),
        ({"slo_itl_s": 1.5}, {"none": 2}),
        ({"slo_itl_s": 0.5}, {"none": 1, "itl": 1}),
        ({"slo_ttft_s": 1.5, "slo_itl_s": 0.5}, {"itl": 1, "ttft": 1}),
        ({"slo_ttft_s": 0.5, "slo_itl_s": 0.5}, {"both": 1, "ttft": 1}),
    ],
)
def test_which_goals_are_missed(
    harness_of: MakeHarness, goals: dict[str, float], expected: dict[str, int]
) -> None:
    """The first has its token after one second and then one a second; the other waits for it,
    and has no gap between tokens."""
    harness = harness_of(max_running_requests=1, **goals)
    harness.submit([1] * 4, max_new_tokens=3)
    harness.submit([2] * 4, max_new_tokens=1)
    harness.submit([3] * 4, max_new_tokens=0)
    harness.submit([3] * 4, rid="x", max_new_tokens=5)
    harness.abort("x")
    harness.run()
    judged = stats_of(harness).num_judged
    assert {goal: n for goal, n in judged.items() if n} == expected


def test_one_that_is_refused_has_missed_its_first_token(harness_of: MakeHarness) -> None:
    harness = harness_of(slo_ttft_s=0.5)
    for i in range(10):  # until the model of the step time is ready
        harness.submit([i] * 4, max_new_tokens=1)
        harness.run()
    before = stats_of(harness).num_judged["ttft"]
    refused = harness.submit([99] * 4, max_new_tokens=1)
    harness.run()
    assert refused.finish.retry_after_s is not None
    assert stats_of(harness).num_judged["ttft"] == before + 1


def test_times_come_with_the_last_message_of_who_wants_them(harness_of: MakeHarness) -> None:
    harness = harness_of()
    wanted = harness.submit([1] * 4, constraint=Regex("[a-z]{2}"), max_new_tokens=3, timed=True)
    other = harness.submit([2] * 4, max_new_tokens=3)
    harness.run()
    assert other.finals[0].times is None
    times = wanted.finals[0].times
    assert times is not None
    in_order = [
        times.accepted_s,
        times.grammar_s,
        times.scheduled_s,
        times.first_token_s,
        times.last_token_s,
        times.ended_s,
    ]
    assert all(earlier <= later for earlier, later in pairwise(in_order))
    assert times.last_token_s - times.first_token_s == 2.0
    assert times.first_token_s - times.scheduled_s == 1.0


def test_a_request_that_never_ran_has_no_times_of_steps(harness_of: MakeHarness) -> None:
    harness = harness_of()
    outcome = harness.submit([1], rid="x", max_new_tokens=5, timed=True)
    harness.abort("x")
    harness.run()
    times = outcome.finals[0].times
    assert times is not None and times.accepted_s == times.ended_s == 100.0
    assert times.scheduled_s == times.first_token_s == times.grammar_s == 0.0


def test_flushing_counts_as_eviction(harness_of: MakeHarness) -> None:
    harness = harness_of()
    harness.submit([1] * 8, max_new_tokens=1)
    harness.run()
    reply: Future[int] = Future()
    harness.scheduler.inbox.put(FlushCache(reply))
    harness.step()
    assert reply.result() == stats_of(harness).num_evicted_tokens == 8
