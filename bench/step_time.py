"""How long steps take on this machine: measured with the native kernels, fitted by least squares.

    python -m bench.step_time --json bench/out/step_time.json

    seconds = base + per_token * tokens + per_position * attended positions + per_row * rows

Residuals count in shares of the measured time, so that short steps are fitted as well as long
ones, and no coefficient is negative. bench/policies.py simulates with these.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.report import Row, publish
from espalier.runtime.assembly import Assembly, assemble
from espalier.runtime.config import EngineConfig
from espalier.runtime.loading import load_model
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.step import Step, StepRow, TableWrite
from espalier.runtime.scheduler.step_time import StepWork

Floats = npt.NDArray[np.float64]

CONTEXT_LEN = 2048
POOL_TOKENS = 16_384
GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The coefficients, in seconds."""

    base_s: float
    per_token_s: float
    per_position_s: float
    per_row_s: float

    def seconds(self, rows: Sequence[StepRow]) -> float:
        one, tokens, positions, num_rows = _features(rows)
        return (
            self.base_s * one
            + self.per_token_s * tokens
            + self.per_position_s * positions
            + self.per_row_s * num_rows
        )

    @classmethod
    def read(cls, file: Path) -> StepCost:
        """From the file that `python -m bench.step_time --json` wrote."""
        values = {row["name"]: float(row["value"]) for row in json.loads(file.read_text())["rows"]}
        return cls(*(values[field.name] for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Shape:
    """A step of `decodes` rows at `context` tokens and a chunk of a prompt behind as many."""

    decodes: int
    context: int
    chunk: int

    def rows(self) -> tuple[StepRow, ...]:
        decodes = [StepRow(row, self.context, 1, True) for row in range(self.decodes)]
        chunk = [StepRow(self.decodes, self.context, self.chunk, True)] if self.chunk else []
        return (*decodes, *chunk)


SHAPES = [
    Shape(decodes, context, chunk)
    for decodes in (0, 1, 4, 16, 48)
    for context in (16, 256, 1024)
    for chunk in (0, 16, 64)
    if decodes or chunk
] + [Shape(0, context, 128) for context in (0, 512, 1536)]


def fit(measured: Iterable[tuple[Sequence[StepRow], float]]) -> StepCost:
    """Least squares of the shares by which each step's time is missed."""
    steps = list(measured)
    seconds = np.array([time_s for _, time_s in steps])
    features = np.array([_features(rows) for rows, _ in steps], np.float64) / seconds[:, None]
    scale = features.max(axis=0)
    weights, kept = np.zeros(4), list(range(4))
    while True:
        found = _least_squares(features[:, kept] / scale[kept], np.ones(len(steps)))
        if (found >= 0).all():
            break
        del kept[int(found.argmin())]
    weights[kept] = found / scale[kept]
    return StepCost(*map(float, weights))


def _least_squares(features: Floats, values: Floats) -> Floats:
    solve: Any = np.linalg.lstsq  # whose types leave out what it returns
    solution: Floats = solve(features, values)[0]
    return solution


def _features(rows: Sequence[StepRow]) -> tuple[int, int, int, int]:
    """What the coefficients stand before, in their order."""
    work = StepWork.of(rows)
    return 1, work.tokens, work.positions, len(rows)


class Stand:
    """A device with made-up KV, on which steps of any shape run."""

    def __init__(self, assembly: Assembly) -> None:
        self._runner = assembly.runner
        self._num_slots = assembly.limits.pool_tokens
        self._next_step = 0

    def measure(self, shape: Shape) -> float:
        """Seconds that the device is busy with one step."""
        rows = shape.rows()
        step = Step(self._next_step, rows, tuple(map(self._write, rows)))
        self._next_step += 1
        launched = self._runner.launch(step)
        launched.sample(
            {i: SampleRow(GREEDY, seed=0, choice=0, position=r.end) for i, r in enumerate(rows)}
        )
        return launched.result().device_s

    def _write(self, row: StepRow) -> TableWrite:
        """Each row has other slots, as far as there are enough."""
        positions = np.arange(row.end, dtype=np.int32)
        slots = (row.table_row * row.end + positions) % self._num_slots
        return TableWrite(row.table_row, 0, positions % 1000 + 1000, slots)


def measure(rounds: int) -> list[tuple[Shape, float]]:
    """The least time of each shape, which others on the machine have disturbed least.

    Every round runs all shapes in an order of its own.
    """
    config = EngineConfig.of(context_len=CONTEXT_LEN, kv_pool_tokens=POOL_TOKENS)
    assembly = assemble(config, load_model(config), lambda _: None)
    try:
        stand = Stand(assembly)
        times: dict[Shape, list[float]] = {shape: [] for shape in SHAPES}
        for index in range(rounds + 1):  # the first round warms up
            for shape in Random(index).sample(SHAPES, len(SHAPES)):
                seconds = stand.measure(shape)
                if index:
                    times[shape].append(seconds)
        return [(shape, min(values)) for shape, values in times.items()]
    finally:
        assembly.close()


def report(measured: list[tuple[Shape, float]]) -> list[Row]:
    """The coefficients, and how far the fit is from what was measured."""
    cost = fit((shape.rows(), seconds) for shape, seconds in measured)
    coefficients = [
        Row(field.name, value, "s", better="lower")
        for field, value in zip(fields(cost), astuple(cost), strict=True)
    ]
    misses = [abs(cost.seconds(shape.rows()) / seconds - 1) for shape, seconds in measured]
    worst, at = max(zip(misses, measured, strict=True), key=lambda pair: pair[0])
    return [
        *coefficients,
        Row("median miss", 100 * median(misses), "%", "lower", note=f"{len(misses)} shapes"),
        Row("largest miss", 100 * worst, "%", "lower", note=f"{at[0]}: {1e3 * at[1]:.1f} ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of all shapes")
    args = parser.parse_args()
    publish("step_time", report(measure(args.rounds)), args.json)


if __name__ == "__main__":
    main()
