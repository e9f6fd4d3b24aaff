"""Promised times: how prompts are cut beside decodes, and who is refused.

The device computes for real; how long it says that it took is made up, so that the goals are
about known costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.scheduler.step import Step
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness
from tests.steps import ChangedStep

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
TOKEN_S = 1e-3  # what a token costs
STEP_S = 2e-3  # what a step costs


class Priced(Runner):
    """A runner whose steps claim to take what their tokens cost."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[Step] = []

    def launch(self, step: Step) -> LaunchedStep:
        self.steps.append(step)
        seconds = STEP_S + TOKEN_S * step.num_tokens
        return ChangedStep(
            self._runner.launch(step), lambda result: replace(result, device_s=seconds)
        )

    def close(self) -> None:
        self._runner.close()


@pytest.fixture
def priced(request: pytest.FixtureRequest) -> Iterator[tuple[Harness, Priced]]:
    """A harness with the given goals that has run steps of several sizes."""
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), **request.param)
    runner = Priced(harness.device)
    harness.wrap_runner(runner)
    for length in (3, 40, 100):
        harness.submit([length] * length, max_new_tokens=8)
        harness.run()
    runner.steps.clear()
    yield harness, runner
    harness.run()
    harness.assert_drained()
    harness.close()


def mixed_steps(steps: list[Step]) -> list[Step]:
    """Steps in which something decodes while a prompt is computed."""
    return [s for s in steps if 1 < len(s.rows) < s.num_tokens]


@pytest.mark.parametrize("priced", [{"slo_itl_s": 0.030}], indirect=True)
def test_prompts_are_cut_so_that_decodes_keep_their_pace(priced: tuple[Harness, Priced]) -> None:
    harness, runner = priced
    streams = [harness.submit([i] * 5, max_new_tokens=60) for i in (7, 8)]
    for _ in range(4):
        harness.step()
    runner.steps.clear()
    long = harness.submit([9] * 300, max_new_tokens=2)
    while not long.finals:
        harness.step()
    assert all(len(stream.ids) > 10 for stream in streams)
    sizes = [step.num_tokens for step in mixed_steps(runner.steps)]
    assert len(sizes) >= 300 // 27
    assert max(sizes) <= 29  # (30 ms - 2 ms) / 1 ms, and what rounding of the fit leaves
    assert sorted(sizes)[len(sizes) // 2] >= 25  # no smaller than they need be


@pytest.mark.parametrize("priced", [{"slo_itl_s": 0.001}], indirect=True)
def test_prompts_get_on_even_if_the_goal_cannot_be_kept(priced: tuple[Harness, Priced]) -> None:
    harness, runner = priced
    harness.submit([7] * 5, max_new_tokens=60)
    for _ in range(3):
        harness.step()
    long = [harness.submit([9 + i] * 60, max_new_tokens=2) for i in range(2)]
    harness.run()
    assert all(outcome.finish.kind == "length" for outcome in long)
    assert max(step.num_tokens for step in mixed_steps(runner.steps)) <= 2 + 4


@pytest.mark.parametrize("priced", [{}], indirect=True)
def test_without_goals_nothing_is_cut_or_refused(priced: tuple[Harness, Priced]) -> None:
    harness, runner = priced
    harness.submit([7] * 5, max_new_tokens=30)
    harness.step()
    outcomes = [harness.submit([9 + i] * 300, max_new_tokens=2) for i in range(5)]
    harness.run()
    assert all(outcome.finish.kind == "length" for outcome in outcomes)
    assert max(step.num_tokens for step in mixed_steps(runner.steps)) == 128


@pytest.mark.parametrize("priced", [{"slo_ttft_s": 0.4}], indirect=True)
def test_who_would_wait_too_long_is_refused_at_once(priced: tuple[Harness, Priced]) -> None:
    """Each prompt takes 200 ms: two are in time, the third would have to wait for both."""
    harness, _ = priced
    outcomes = [harness.submit([9 + i] * 190, max_new_tokens=2) for i in range(3)]
    harness.step()
    assert outcomes[2].finish.kind == "error"
    retry_after_s = outcomes[2].finish.retry_after_s
    assert retry_after_s is not None and 0.1 < retry_after_s < 0.3
    assert "later than promised" in outcomes[2].finish.message
    harness.run()
    assert [outcome.finish.kind for outcome in outcomes[:2]] == ["length", "length"]
    again = harness.submit([9] * 190, max_new_tokens=2)
    behind = [harness.submit([9] * (190 + i), max_new_tokens=2) for i in range(1, 5)]
    harness.run()
    assert all(o.finish.kind == "length" for o in (again, *behind)), "cached tokens cost nothing"
