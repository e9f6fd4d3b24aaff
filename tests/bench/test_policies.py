"""The simulation of policies on a small trace: its books, its bounds, and what it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.planning import planning_rows, waiting_line
from bench.policies import SETTINGS, Setting, Workload, figures, passes, plot, policy_rows
from bench.report import Row, publish
from bench.step_time import SHAPES, Shape, StepCost, fit
from bench.trace import TracedRequest, TraceLine, scaled
from espalier.runtime.config import SchedulerConfig

COST = StepCost(base_s=0.02, per_token_s=0.004, per_position_s=4e-6, per_row_s=0.001)


def small_trace(num_requests: int = 60) -> list[TracedRequest]:
    """Conversations of three turns, each of which begins like the one before."""
    lines: list[TraceLine] = []
    for index in range(num_requests):
        conversation, turn = index % (num_requests // 3), index // (num_requests // 3)
        hashes = [0, *(1000 * (conversation + 1) + block for block in range(2 * turn + 2))]
        length = 512 * len(hashes) - 100 - conversation
        lines.append(TraceLine(1000 * index, length, 200 + index, hashes))
    return scaled(lines, 64)


def workload(pool_tokens: int = 600, max_passes: int = 4) -> Workload:
    base = SchedulerConfig(max_running_requests=8, max_step_tokens=32, max_passes=max_passes)
    return Workload(small_trace(), COST, pool_tokens, base)


def test_lengths_are_scaled_and_equal_blocks_stay_equal() -> None:
    first, *_, last = small_trace()
    assert (len(first.ids), first.num_new) == (-(-(3 * 512 - 100) // 64), 200 // 64)
    shared = first.ids[:16] == last.ids[:16]
    assert shared.tolist() == [True] * 8 + [False] * 8
    assert len({int(request.ids[-1]) for request in small_trace()}) == 60


def test_turns_count_down_within_a_conversation() -> None:
    requests = [request for request in small_trace() if request.conversation == 5]
    assert [request.turns_left for request in requests] == [3, 2, 1]
    assert len({request.tenant for request in requests}) == 1


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_request_is_served_and_none_passed_too_often(setting: Setting) -> None:
    work = workload()
    run = work.simulate(setting, duration_s=5.0)
    assert len(run.lives) == 60 and sorted(run.admitted) == list(range(60))
    for life in run.lives:
        assert life.arrival_s <= life.admitted_s < life.token_s[0] <= life.token_s[-1]
        assert len(life.token_s) == life.request.num_new
    assert run.makespan_s >= COST.per_token_s * run.stats.num_computed_tokens
    if setting.is_bounded:
        assert max(passes(run, within_tenants=setting.is_fair)) <= 4


def test_a_simulation_repeats_itself() -> None:
    first, second = (workload().simulate(SETTINGS[0], 5.0) for _ in range(2))
    assert first.admitted == second.admitted and first.makespan_s == second.makespan_s


def test_fcfs_with_room_for_all_passes_nobody() -> None:
    run = workload(pool_tokens=50_000).simulate(Setting("fcfs", False), duration_s=5.0)
    assert run.admitted == list(range(60))
    assert passes(run, within_tenants=False) == [0] * 60
    assert figures(Setting("fcfs", False), run, 4)[5].met == "yes"


def test_all_settings_are_reported_and_drawn(tmp_path: Path) -> None:
    rows = policy_rows(workload(), load=1.0)
    assert len({row.name for row in rows}) == len(rows) == 10 * len(SETTINGS)
    plot(tmp_path / "policies.svg", "a < b", rows)
    drawn = (tmp_path / "policies.svg").read_text()
    assert {f"<!-- {s.name} -->" in drawn for s in SETTINGS} == {True}
    assert "<!-- a &lt; b -->" in drawn


def test_planning_measures_every_line_under_every_setting() -> None:
    rows = planning_rows(num_requests=80, num_steps=30)
    assert len({row.name for row in rows}) == len(rows) == 5 * 2 * len(SETTINGS)
    assert all(row.value > 0 for row in rows)


def test_waiting_lines_share_what_they_say() -> None:
    for num_prefixes, expected in ((None, 12), (3, 3), (1, 1)):
        line = waiting_line(12, num_prefixes)
        assert len({tuple(request.ids[:384].tolist()) for request in line}) == expected
        assert len({request.ids.tobytes() for request in line}) == 12


def test_a_fit_finds_the_coefficients_of_exact_times() -> None:
    steps = [(shape.rows(), COST.seconds(shape.rows())) for shape in SHAPES]
    fitted = fit(steps)
    np.testing.assert_allclose(
        [fitted.seconds(rows) for rows, _ in steps], [time_s for _, time_s in steps]
    )


def test_no_coefficient_is_negative() -> None:
    shapes = [Shape(rows, 64, 0) for rows in (1, 2, 4, 8)]
    fitted = fit((shape.rows(), 1.0 / shape.decodes) for shape in shapes)
    assert min(fitted.base_s, fitted.per_token_s, fitted.per_position_s, fitted.per_row_s) >= 0


def test_coefficients_come_back_from_the_report(tmp_path: Path) -> None:
    file = tmp_path / "step_time.json"
    rows = [
        Row(name, getattr(COST, name), "s")
        for name in ("base_s", "per_token_s", "per_position_s", "per_row_s")
    ]
    publish("step_time", rows, file)
    assert StepCost.read(file) == COST
