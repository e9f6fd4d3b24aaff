"""What a constraint costs a decode step: time between tokens with one over time without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter

from bench.prompts import prompt
from bench.report import Better, Row, spread
from bench.works import SCHEMA
from espalier.runtime.engine import Engine
from espalier.runtime.messages import Constraint, JsonSchema
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

TARGETS = {16: 1.03, 64: 1.05}
BESIDE = 8  # streams without a constraint, beside as many under one
FIRST, LAST = 8, 72  # tokens of each stream between which all streams run
MAX_NEW = 600
PROMPT_LEN = 16
_RECORDS = {"type": "array", "items": json.loads(SCHEMA), "minItems": 3, "maxItems": 3}


def constrained_rows(rounds: int) -> list[Row]:
    """Every token is sampled: without jump-forward. The streams write the same number of tokens,
    all under one schema (in turn: none)."""
    schema = JsonSchema(json.dumps(_RECORDS))
    with Engine(jump_forward=False) as engine:
        rows = [
            Row(
                f"ITL under a schema / without, {streams} streams",
                *_ratio(engine, [schema] * streams, streams, rounds, target),
            )
            for streams, target in TARGETS.items()
        ]
        beside = [None] * BESIDE + [schema] * BESIDE
        name = f"ITL of {BESIDE} streams without a schema, beside {BESIDE} under one / without"
        return [*rows, Row(name, *_ratio(engine, beside, BESIDE, rounds, TARGETS[16]))]


def _ratio(
    engine: Engine,
    constraints: Sequence[Constraint | None],
    watched: int,
    rounds: int,
    target: float,
) -> tuple[float, str, Better, float, str, str]:
    """A row's fields: how much longer the first `watched` streams wait for their tokens than where
    no stream has a constraint."""
    ratios: list[float] = []
    free = [None] * len(constraints)
    for index in range(rounds + 1):  # the first round warms up, and compiles
        gaps = {
            each is free: asyncio.run(_gap(engine, each, watched, 100 * index))
            for each in ((constraints, free) if index % 2 else (free, constraints))
        }
        if index:
            ratios.append(gaps[False] / gaps[True])
    return median(ratios), "x", "lower", target, "the same without a schema", spread(ratios)


async def _gap(
    engine: Engine, constraints: Sequence[Constraint | None], watched: int, salt: int
) -> float:
    """Mean seconds between tokens of the first `watched` streams while all run."""
    engine.flush_cache()
    calls = [
        GenerateCall(
            input_ids=prompt(engine, PROMPT_LEN, salt + i),
            sampling=SamplingParams(max_new_tokens=MAX_NEW, temperature=0.0, ignore_eos=True),
            constraint=constraint,
        )
        for i, constraint in enumerate(constraints)
    ]
    times = await asyncio.gather(*(_times(engine, call) for call in calls))
    begin, end = max(each[FIRST] for each in times), min(each[LAST] for each in times)
    gaps = [
        later - earlier
        for each in times[:watched]
        for earlier, later in pairwise(each)
        if begin <= earlier and later <= end
    ]
    return fmean(gaps)


async def _times(engine: Engine, call: GenerateCall) -> list[float]:
    """When each token came; the stream is left once there are enough."""
    times: list[float] = []
    async for chunk in engine.generate(call):
        times += [perf_counter()] * len(chunk.ids)
        if len(times) > LAST + FIRST:
            break
    return times
