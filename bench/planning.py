"""What a step costs the scheduler's CPU while 10,000 requests wait.

    python -m bench.planning --json bench/out/planning.json

"plan" is the scheduler's own work up to a step's launch, "round" all of it, with the settling of
the step before; there is no device. Three lines of waiting requests, each under every policy:
prompts that share nothing, prompts of 100 prefixes, prompts of one prefix, which comes to be
cached while all of them wait, so that soon as many of them run as may.
"""

from __future__ import annotations

import argparse
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


def waiting_line(num_requests: int, num_prefixes: int | None) -> list[TracedRequest]:
    """Requests that all are there at once; with no number of prefixes they share nothing."""
    lines: list[TraceLine] = []
    for index in range(num_requests):
        prefix = index if num_prefixes is None else index % num_prefixes
        shared = [prefix * PREFIX_BLOCKS + block for block in range(PREFIX_BLOCKS)]
        own = num_requests * PREFIX_BLOCKS + index
        length = (PREFIX_BLOCKS * BLOCK) + BLOCK // 4
        lines.append(TraceLine(0, length, NUM_NEW * SCALE, [*shared, own]))
    return scaled(lines, SCALE)


def measure(setting: Setting, requests: list[TracedRequest], num_steps: int) -> list[CpuTime]:
    """What each step costs, the first of which takes all requests in."""
    simulation = Simulation(setting.config(SchedulerConfig()), MEASURED, POOL_TOKENS)
    try:
        simulation.submit(requests, 0.0)
        return [simulation.step() for _ in range(num_steps)]
    finally:
        simulation.close()


def planning_rows(num_requests: int, num_steps: int) -> list[Row]:
    rows: list[Row] = []
    for kind, num_prefixes in PREFIXES.items():
        requests = waiting_line(num_requests, num_prefixes)
        for setting in SETTINGS:
            first, *times = measure(setting, requests, num_steps + 1)
            name = f"{kind}: {setting.name}"
            each = f"{1e6 * first.round_s / num_requests:.0f} us a request to take them in"
            rows += [
                _row(f"{name}, plan", [time.plan_s for time in times], each),
                _row(f"{name}, round", [time.round_s for time in times]),
            ]
    return rows


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
