"""The step-time model: what it learns from steps of a known cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.scheduler.step import StepRow
from espalier.runtime.scheduler.step_time import StepTimeModel, StepWork

works = st.builds(StepWork, st.integers(1, 512), st.integers(1, 100_000))


def learnt(cost: tuple[float, float, float], steps: list[StepWork]) -> StepTimeModel:
    model = StepTimeModel()
    for work in steps:
        model.observe(work, cost[0] + cost[1] * work.tokens + cost[2] * work.positions)
    return model


SPREAD = [StepWork(n, n * context) for n in (1, 16, 64, 128, 300) for context in (1, 200, 1500)]


@given(
    cost=st.tuples(st.floats(0, 0.01), st.floats(0, 0.01), st.floats(0, 1e-6)),
    work=works,
)
def test_a_linear_cost_is_learnt(cost: tuple[float, float, float], work: StepWork) -> None:
    model = learnt(cost, SPREAD)
    expected = cost[0] + cost[1] * work.tokens + cost[2] * work.positions
    assert model.predict(work) == pytest.approx(expected, rel=0.02, abs=1e-4)


def test_the_past_fades() -> None:
    model = learnt((0.0, 1e-3, 0.0), SPREAD)
    for _ in range(100):
        for work in SPREAD:
            model.observe(work, 3e-3 * work.tokens)
    assert model.predict(StepWork(100, 100)) == pytest.approx(0.3, rel=0.02)


@given(seconds=st.lists(st.floats(0, 10), min_size=8, max_size=30), work=works)
def test_whatever_is_observed_more_work_never_takes_less(
    seconds: list[float], work: StepWork
) -> None:
    model = StepTimeModel()
    for index, value in enumerate(seconds):
        model.observe(StepWork(1 + index % 3, 10 * index), value)
    more = StepWork(work.tokens + 1, work.positions + 10)
    assert 0 <= model.predict(work) <= model.predict(more)


def test_it_is_not_ready_at_first() -> None:
    assert not learnt((1e-3, 1e-3, 0.0), SPREAD[:7]).is_ready
    assert learnt((1e-3, 1e-3, 0.0), SPREAD[:8]).is_ready


def test_tokens_within_a_time() -> None:
    model = learnt((5e-3, 1e-3, 0.0), SPREAD)
    assert model.tokens_within(0.0505, start=100, most=512) == 50
    assert model.tokens_within(9.0, start=100, most=512) == 512
    assert model.tokens_within(-1.0, start=0, most=512) == 0


def test_positions_that_a_row_attends_to() -> None:
    rows = [StepRow(0, 10, 3, samples=False), StepRow(1, 0, 1, samples=True)]
    assert StepWork.of(rows) == StepWork(4, 11 + 12 + 13 + 1)
