"""Does torch's OpenMP fight our threads for the cores? The engine under OMP_NUM_THREADS.

    python -m bench.openmp --json bench/out/openmp.json

OpenMP reads its environment once, so each measurement is a process of its own; the settings take
turns (A B C, A B C ...). Ratios are to the default, which leaves the variable alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np

from bench.report import Row, publish, spread
from bench.works import measure
from espalier.runtime.engine import Engine

SETTINGS = ("unset", "1", "2")
WORKS = {"one stream": 1, "batch 16": 16}
PROMPT_LEN, NEW = 32, 48
_RUNS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rounds", type=int, default=3, help="processes per setting")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_measured()))
        return
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(args.rounds):
        for setting in SETTINGS:
            print(f"round {number + 1}: OMP_NUM_THREADS {setting}", file=sys.stderr, flush=True)
            for work, speed in _in_child(setting).items():
                found.setdefault((work, setting), []).append(speed)
    publish("openmp", _rows(found), args.json)


def _in_child(setting: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": setting}
    if setting == "unset":
        del environment["OMP_NUM_THREADS"]
    command = [sys.executable, "-m", "bench.openmp", "--child"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    speeds: dict[str, float] = json.loads(done.stdout)
    return speeds


def _measured() -> dict[str, float]:
    """Tokens per second of each work, the median of some runs after one to warm up."""
    rng = np.random.default_rng(0)
    with Engine("smollm2") as engine:
        found: dict[str, float] = {}
        for work, count in WORKS.items():
            speeds: list[float] = []
            for _ in range(_RUNS + 1):
                prompts = rng.integers(100, 40_000, (count, PROMPT_LEN)).tolist()
                speeds.append(measure(engine, prompts, NEW).tokens_per_s)
            found[work] = median(speeds[1:])
    return found


def _rows(found: dict[tuple[str, str], list[float]]) -> list[Row]:
    rows: list[Row] = []
    for work in WORKS:
        default = median(found[work, "unset"])
        for setting in SETTINGS:
            speeds = found[work, setting]
            rows.append(
                Row(
                    f"{work}: OMP_NUM_THREADS {setting}",
                    median(speeds),
                    "tok/s",
                    note=f"{median(speeds) / default:.3f} of the default; {spread(speeds)}",
                )
            )
    return rows


if __name__ == "__main__":
    main()
