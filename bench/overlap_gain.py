"""What overlap gains: the works of bench/step.py on an engine with it and on one without."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import sleep

from bench.prompts import prompt
from bench.report import Row, spread
from bench.works import SCHEMA, measure
from espalier.runtime.engine import Engine
from espalier.runtime.messages import Constraint, JsonSchema

PREFIX_LEN = 1024
_REST_S = 0.7  # an engine that has just become idle touches memory, beside the other one


@dataclass(frozen=True, slots=True)
class Work:
    """So many prompts at once, of so many tokens in and out; and again, with others."""

    count: int
    length: int
    new: int
    constraint: Constraint | None = None
    repeats: int = 1


def overlap_rows(rounds: int) -> list[Row]:
    """Time without overlap over time with it, in turn; at least as good everywhere is the aim."""
    with Engine() as with_overlap, Engine(overlap=False) as without:
        return [
            _row(name, work, (with_overlap, without), rounds)
            for name, work in {
                "decode, 1 stream": Work(1, 16, 64, repeats=4),
                "prefill, 1,024 tokens": Work(1, 1024, 1, repeats=2),
                "batch 16, 134 in, 64 out": Work(16, 134, 64),
                f"16 x ({PREFIX_LEN:,} shared + 38), 16 out": Work(16, PREFIX_LEN + 38, 16),
                "JSON, 1 stream": Work(1, 16, 160, JsonSchema(SCHEMA), repeats=10),
                "JSON, 8 streams": Work(8, 16, 160, JsonSchema(SCHEMA), repeats=4),
                "free, 8 streams": Work(8, 16, 128),
            }.items()
        ]


def _row(
    name: str,
    work: Work,
    engines: tuple[Engine, Engine],
    rounds: int,
) -> Row:
    ratios: list[float] = []
    for index in range(2 * rounds + 1):  # the first round warms both up
        order = engines if index % 2 else engines[::-1]
        seconds = {engine: _seconds(engine, work, index) for engine in order}
        if index:
            ratios.append(seconds[engines[1]] / seconds[engines[0]])
    return Row(
        f"overlap / none: {name}",
        median(ratios),
        "x",
        target=1.0,
        peer="without overlap",
        note=spread(ratios),
    )


def _seconds(engine: Engine, work: Work, salt: int) -> float:
    seconds = 0.0
    sleep(_REST_S)
    for repeat in range(work.repeats):
        seed = 10 * salt + repeat
        engine.flush_cache()
        trunk = prompt(engine, PREFIX_LEN, seed) if work.length > PREFIX_LEN else []
        own = work.length - len(trunk)
        prompts = [trunk + prompt(engine, own, 16 * seed + i) for i in range(work.count)]
        seconds += measure(engine, prompts, work.new, work.constraint).seconds
    return seconds
