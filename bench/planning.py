"""What a step costs the scheduler's CPU while 10,000 requests wait.

    python -m bench.planning --json bench/out/planning.json

"plan" is the scheduler's own work up to a step's launch, "round" all of it, with the settling of
the step before; there is no device. Lines of waiting requests, each under every policy: prompts
that share nothing, prompts of 100 prefixes, prompts of one prefix, which comes to be cached while
all of them wait, so that soon as many of them run as may. Two more lines share a prefix that is
cached before they come. In the one it is evicted while they wait for a row, a few tokens in each
step, and then computed again; in the other there are rows, but so few slots that most of those
that are tried do not fit.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from bench.policies import MEASURED, SETTINGS, Setting
from bench.report import Row, publish
from bench.simulation import CpuTime, Simulation
from bench.trace import BLOCK, TracedRequest, TraceLine, scaled
from espalier.runtime.config import SchedulerConfig

SCALE, PREFIX_BLOCKS, NUM_NEW = 4, 3, 16  # prompts of three shared blocks and one of their own
POOL_TOKENS = 131_072
TARGET_MS = 5.0
PREFIXES = {"distinct": None, "100 prefixes": 100, "one prefix": 1}
LATE = {"evicted prefix": 0, "nothing fits": 8}
"""Rows that are left to the line, by what happens to it."""
PROMPT_LEN = (PREFIX_BLOCKS * BLOCK + BLOCK // 4) // SCALE
NUM_EARLY, EARLY_NEW = 8, 128  # requests that hold all there is while the line comes


def waiting_line(num_requests: int, num_prefixes: int | None) -> list[TracedRequest]:
    """Requests that all are there at once; with no number of prefixes they share nothing."""
    return _requests(
        [(i if num_prefixes is None else i % num_prefixes, NUM_NEW) for i in range(num_requests)]
    )


def _requests(kinds: list[tuple[int, int]]) -> list[TracedRequest]:
    """By the number of its prefix, and of its new tokens."""
    lines: list[TraceLine] = []
    for index, (prefix, num_new) in enumerate(kinds):
        shared = [prefix * PREFIX_BLOCKS + block for block in range(PREFIX_BLOCKS)]
        own = len(kinds) * PREFIX_BLOCKS + index
        lines.append(TraceLine(0, PROMPT_LEN * SCALE, num_new * SCALE, [*shared, own]))
    return scaled(lines, SCALE)


def measure(setting: Setting, requests: list[TracedRequest], num_steps: int) -> list[CpuTime]:
    """What each step costs, the first of which takes all requests in."""
    simulation = Simulation(setting.config(SchedulerConfig()), MEASURED, POOL_TOKENS)
    try:
        simulation.submit(requests, 0.0)
        return [simulation.step() for _ in range(num_steps)]
    finally:
        simulation.close()


def measure_late(
    setting: Setting, num_requests: int, num_steps: int, *, spare_rows: int
) -> list[CpuTime]:
    """The same of a line that comes when its prefix is cached and all slots are about to be held.

    The early requests need all slots, so that what is cached goes; with `spare_rows` they leave
    rows to those who wait, who do not fit.
    """
    kinds = [(0, NUM_NEW)] + [(i, EARLY_NEW) for i in range(1, NUM_EARLY + 1)]
    requests = _requests(kinds + [(0, NUM_NEW)] * num_requests)
    first, early, late = requests[:1], requests[1 : NUM_EARLY + 1], requests[NUM_EARLY + 1 :]
    config = replace(SchedulerConfig(), max_running_requests=NUM_EARLY + spare_rows)
    pool_tokens = NUM_EARLY * (PROMPT_LEN + EARLY_NEW) - EARLY_NEW
    simulation = Simulation(setting.config(config), MEASURED, pool_tokens)
    try:
        for ahead in (first, early):
            simulation.submit(ahead, 0.0)
            while len(simulation.runner.admissions) <= ahead[-1].index:
                simulation.step()
        simulation.submit(late, 0.0)
        return [simulation.step() for _ in range(num_steps)]
    finally:
        simulation.close()


def planning_rows(num_requests: int, num_steps: int) -> list[Row]:
    rows: list[Row] = []
    for kind, num_prefixes in PREFIXES.items():
        requests = waiting_line(num_requests, num_prefixes)
        for setting in SETTINGS:
            times = measure(setting, requests, num_steps + 1)
            rows += _rows(f"{kind}: {setting.name}", num_requests, times)
    for kind, spare_rows in LATE.items():
        for setting in SETTINGS:
            times = measure_late(setting, num_requests, num_steps + 1, spare_rows=spare_rows)
            rows += _rows(f"{kind}: {setting.name}", num_requests, times)
    return rows


def _rows(name: str, num_requests: int, times: list[CpuTime]) -> list[Row]:
    first, *others = times
    each = f"{1e6 * first.round_s / num_requests:.0f} us a request to take them in"
    return [
        _row(f"{name}, plan", [time.plan_s for time in others], each),
        _row(f"{name}, round", [time.round_s for time in others]),
    ]


def _row(name: str, seconds: list[float], note: str = "") -> Row:
    """The largest; beside it the mean and the 99th percentile."""
    mean, p99 = 1e3 * fmean(seconds), 1e3 * float(np.percentile(seconds, 99))
    at = int(np.argmax(seconds)) + 1
    notes = "; ".join(filter(None, [f"at step {at}; mean {mean:.2f}, p99 {p99:.2f}", note]))
    return Row(f"{name}, max", 1e3 * max(seconds), "ms", "lower", TARGET_MS, note=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--requests", type=int, default=10_000, help="how many wait")
    parser.add_argument("--steps", type=int, default=400, help="that are measured")
    args = parser.parse_args()
    publish("planning", planning_rows(args.requests, args.steps), args.json)


if __name__ == "__main__":
    main()
