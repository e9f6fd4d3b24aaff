"""What overlap gains: the works of bench/step.py on an engine with it and on one without."""

from __future__ import annotations

from statistics import median

from bench.prompts import prompt
from bench.report import Row, spread
from bench.works import SCHEMA, measure
from espalier.runtime.engine import Engine
from espalier.runtime.messages import Constraint, JsonSchema

PREFIX_LEN = 1024


def overlap_rows(rounds: int) -> list[Row]:
    """Time without overlap over time with it, in turn; at least as good everywhere is the aim."""
    with Engine() as with_overlap, Engine(overlap=False) as without:
        return [
            _row(name, work, (with_overlap, without), rounds)
            for name, work in {
                "decode, 1 stream": (1, 16, 64, None),
                "prefill, 1,024 tokens": (1, 1024, 1, None),
                "batch 16, 134 in, 64 out": (16, 134, 64, None),
                f"16 x ({PREFIX_LEN:,} shared + 38), 16 out": (16, PREFIX_LEN + 38, 16, None),
                "JSON, 1 stream": (1, 16, 160, JsonSchema(SCHEMA)),
                "JSON, 8 streams": (8, 16, 160, JsonSchema(SCHEMA)),
                "free, 8 streams": (8, 16, 128, None),
            }.items()
        ]


def _row(
    name: str,
    work: tuple[int, int, int, Constraint | None],
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


def _seconds(engine: Engine, work: tuple[int, int, int, Constraint | None], salt: int) -> float:
    count, length, new, constraint = work
    engine.flush_cache()
    trunk = prompt(engine, PREFIX_LEN, salt) if length > PREFIX_LEN else []
    own = length - len(trunk)
    prompts = [trunk + prompt(engine, own, 100 * salt + i) for i in range(count)]
    return measure(engine, prompts, new, constraint).seconds
