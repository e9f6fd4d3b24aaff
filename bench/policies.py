"""Scheduling policies on a Mooncake trace: the real scheduler, against a modelled step time.

    python -m bench.policies --trace FILE [--step-time bench/out/step_time.json] \\
        [--json bench/out/policies.json] [--plot bench/out/policies.png]

Lengths are divided by `--scale`, and arrivals are spread so that the trace lasts as long as its
requests take, if all are there at once under fcfs, divided by `--load`; see bench/trace.py for
priorities, tenants and conversations. A conversation's next turn comes when the trace says so,
whether or not the one before has been answered.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from bench.plots import bar_panels
from bench.report import Row, publish
from bench.simulation import Life, Run, Simulation
from bench.step_time import StepCost
from bench.trace import HOG, NUM_PRIORITIES, TracedRequest, read_trace
from espalier.runtime.config import SchedulePolicy, SchedulerConfig

MEASURED = StepCost(
    base_s=0.0222,
    per_token_s=0.00779,
    per_position_s=5.2e-06,
    per_row_s=0.00782,
)
"""The default model on two cores of a Zen 1 at 2.5 GHz, while others computed there as well."""

FAIR = "*=1"


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to schedule."""

    policy: SchedulePolicy
    is_fair: bool

    @property
    def name(self) -> str:
        return f"{self.policy}, fair" if self.is_fair else self.policy

    @property
    def is_bounded(self) -> bool:
        """Whether no request is passed over more than `max_passes` times."""
        return self.policy != "priority"

    def config(self, base: SchedulerConfig) -> SchedulerConfig:
        return replace(base, policy=self.policy, fair_share=FAIR if self.is_fair else None)


SETTINGS = [
    Setting(policy, is_fair) for policy in get_args(SchedulePolicy) for is_fair in (False, True)
]


@dataclass(frozen=True, slots=True)
class Workload:
    """What every setting is simulated on."""

    requests: list[TracedRequest]
    cost: StepCost
    pool_tokens: int
    base: SchedulerConfig

    def simulate(self, setting: Setting, duration_s: float) -> Run:
        simulation = Simulation(setting.config(self.base), self.cost, self.pool_tokens)
        try:
            return simulation.run(self.requests, duration_s)
        finally:
            simulation.close()

    @property
    def service_s(self) -> float:
        """How long the requests take if none has to be waited for."""
        return self.simulate(Setting("fcfs", False), 0.0).makespan_s


def passes(run: Run, *, within_tenants: bool) -> list[int]:
    """How many later requests, of all or of the same tenant, were admitted before each one."""
    admitted: dict[str, list[int]] = {}
    found: list[int] = []
    for index in run.admitted:
        tenant = run.lives[index].request.tenant if within_tenants else ""
        before = admitted.setdefault(tenant, [])
        found.append(len(before) - bisect_right(before, index))
        insort(before, index)
    return found


def _mean_ttft(run: Run, chosen: Callable[[Life], bool] = lambda _: True) -> float:
    return float(np.mean([life.ttft_s for life in run.lives if chosen(life)]))


def figures(setting: Setting, run: Run, max_passes: int) -> list[Row]:
    """Everything that is reported of a run."""
    lives, stats = run.lives, run.stats
    name, top = setting.name, NUM_PRIORITIES - 1
    bound = max_passes if setting.is_bounded else None
    own = "by its own tenant" if setting.is_fair else ""
    passed = max(passes(run, within_tenants=setting.is_fair))
    itl = [gap for life in lives for gap in life.itl_s]
    hit_rate = 100 * stats.num_cached_tokens / stats.num_prompt_tokens
    computed = f"{stats.num_computed_tokens:,} computed"
    ttft_s = [life.ttft_s for life in lives]
    return [
        Row(f"hit rate: {name}", hit_rate, "%", note=computed),
        Row(f"mean TTFT: {name}", _mean_ttft(run), "s", "lower"),
        Row(f"p99 TTFT: {name}", float(np.percentile(ttft_s, 99)), "s", "lower"),
        Row(f"p99 ITL: {name}", float(np.percentile(itl, 99)), "s", "lower"),
        Row(f"makespan: {name}", run.makespan_s, "s", "lower", note=_retractions(run)),
        Row(f"most passed over: {name}", passed, "times", "lower", target=bound, note=own),
        Row(f"longest wait: {name}", max(life.wait_s for life in lives), "s", "lower"),
        Row(
            f"mean TTFT, all but the hog: {name}",
            _mean_ttft(run, lambda life: life.request.tenant != HOG),
            "s",
            "lower",
        ),
        Row(
            f"mean TTFT, priority {top}: {name}",
            _mean_ttft(run, lambda life: life.request.priority == top),
            "s",
            "lower",
        ),
        Row(
            f"mean TTFT, last turns: {name}",
            _mean_ttft(run, lambda life: life.request.turns_left == 1),
            "s",
            "lower",
        ),
    ]


def _retractions(run: Run) -> str:
    return f"{run.stats.num_forward_passes:,} steps, {run.stats.num_retractions} retractions"


def policy_rows(workload: Workload, load: float) -> list[Row]:
    """The figures of all settings, those of one kind together."""
    duration_s = workload.service_s / load
    tables = [
        figures(setting, workload.simulate(setting, duration_s), workload.base.max_passes)
        for setting in SETTINGS
    ]
    return [row for rows in zip(*tables, strict=True) for row in rows]


def plot(file: Path, title: str, rows: list[Row]) -> None:
    """Draw the rows as panels of bars."""
    panels: dict[str, dict[str, float]] = {}
    for row in rows:
        figure, _, setting = row.name.partition(": ")
        panels.setdefault(f"{figure} ({row.unit})", {})[setting] = row.value
    bar_panels(file, title, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument("--requests", type=int, default=3000, help="of the trace, from its start")
    parser.add_argument("--scale", type=int, default=32, help="lengths are divided by it")
    parser.add_argument("--load", type=float, default=1.1, help="of what can be served")
    parser.add_argument("--pool-tokens", type=int, default=32_768)
    parser.add_argument("--step-time", type=Path, metavar="FILE", help="from bench.step_time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there")
    args = parser.parse_args()
    cost = MEASURED if args.step_time is None else StepCost.read(args.step_time)
    requests = read_trace(args.trace, args.requests, args.scale)
    workload = Workload(requests, cost, args.pool_tokens, SchedulerConfig())
    rows = policy_rows(workload, args.load)
    publish("policies", rows, args.json)
    if args.plot is not None:
        title = f"{len(requests):,} requests of {args.trace.stem}, lengths / {args.scale}"
        plot(args.plot, f"{title}, load {args.load:g}", rows)


if __name__ == "__main__":
    main()
