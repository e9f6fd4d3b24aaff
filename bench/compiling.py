"""What plain streams feel of a compilation: `python -m bench.compiling [--json FILE]`.

The gaps between the tokens of plain streams, with and without a grammar that compiles for many
seconds, in turn on one engine (A B A B ...); and how long a small schema waits beside it. What
takes bare xgrammar seconds as a regex or a schema is a grammar of ours here: how long that takes
from the request to its first token is told, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import numpy as np

from bench.prompts import prompt
from bench.report import Row, median_row, publish, spread
from espalier.runtime.engine import Engine
from espalier.runtime.errors import InvalidRequest, Overloaded
from espalier.runtime.messages import Constraint, Ebnf, JsonSchema, Regex
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

Monster = Callable[[int], Constraint]
# Each time another one, which is in no cache.
TAMED: dict[str, Monster] = {
    "a nested regex": lambda salt: Regex(f"(([a-z]{{1,100}}[0-9]{{1,100}}){{1,100}}){salt}"),
    "an enum of 5,000 strings": lambda salt: JsonSchema(json.dumps({"enum": _strings(salt)})),
    "a list of such": lambda salt: JsonSchema(
        json.dumps({"type": "array", "minItems": 1, "items": {"enum": _strings(salt)}})
    ),
    "a nested EBNF": lambda salt: Ebnf(
        f'root ::= ([a-z]{{1,100}} [0-9]{{1,100}}){{1,100}} "{salt}"'
    ),
}
MONSTERS: dict[str, Monster] = {
    "an EBNF of 1,000 repetitions": lambda salt: Ebnf(
        "root ::= " + " | ".join(f'[a-z]{{1,{most}}} "{salt}"' for most in range(1, 1000))
    ),
}
STREAMS = (1, 8)
PROMPT_LEN, MAX_NEW = 32, 4000
SECONDS = 10.0
TARGET = 1.05
DEADLINE_S = 60.0  # the monsters are to compile all the time, not to begin again and again


def _strings(salt: int) -> list[str]:
    return [f"{i * 7919:x}-{i * 104_729 + salt:x}" for i in range(5000)]


def compiling_rows(rounds: int) -> list[Row]:
    with Engine(compile_deadline_s=DEADLINE_S) as engine:
        rows = [asyncio.run(_time_row(engine, *tamed, rounds)) for tamed in TAMED.items()]
        for name, monster in MONSTERS.items():
            for num_streams in STREAMS:
                rows += asyncio.run(_itl_rows(engine, name, monster, num_streams, rounds))
            rows.append(asyncio.run(_overtaking_row(engine, name, monster, rounds)))
        return rows


async def _itl_rows(
    engine: Engine, name: str, monster: Monster, num_streams: int, rounds: int
) -> list[Row]:
    means: list[float] = []
    tails: list[float] = []
    for index in range(rounds + 1):  # the first round warms up
        alone = await _gaps(engine, num_streams, 2 * index)
        async with _compiling(engine, monster):
            beside = await _gaps(engine, num_streams, 2 * index + 1)
        if index:
            means.append(fmean(beside) / fmean(alone))
            tails.append(float(np.percentile(beside, 99) / np.percentile(alone, 99)))
    work = f"{num_streams} plain stream{'s' * (num_streams > 1)} beside {name}"
    return [
        Row(f"mean ITL: {work}", median(means), "x", "lower", TARGET, "alone", spread(means)),
        Row(f"p99 ITL: {work}", median(tails), "x", "lower", None, "alone", spread(tails)),
    ]


async def _gaps(engine: Engine, num_streams: int, salt: int) -> list[float]:
    """Seconds between tokens, of all streams, over some seconds."""
    engine.flush_cache()
    times: list[list[float]] = [[] for _ in range(num_streams)]
    streams = [
        asyncio.create_task(_stream(engine, prompt(engine, PROMPT_LEN, 100 * salt + i), found))
        for i, found in enumerate(times)
    ]
    await asyncio.sleep(SECONDS)
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
    return [later - earlier for found in times for earlier, later in pairwise(found)]


async def _stream(engine: Engine, ids: list[int], times: list[float]) -> None:
    sampling = SamplingParams(max_new_tokens=MAX_NEW, temperature=0.0, ignore_eos=True)
    async for _ in engine.generate(GenerateCall(input_ids=ids, sampling=sampling)):
        times.append(perf_counter())


async def _time_row(engine: Engine, name: str, monster: Monster, rounds: int) -> Row:
    """From a request to its first token, alone; each is a new one."""
    seconds: list[float] = []
    for index in range(rounds + 1):
        start = perf_counter()
        await _constrained(engine, monster(index))
        seconds.append(perf_counter() - start)
    return median_row(f"{name}, alone", seconds[1:], "s")


async def _overtaking_row(engine: Engine, name: str, monster: Monster, rounds: int) -> Row:
    """From a small schema's request to its first token; each schema is a new one."""
    seconds: list[float] = []
    async with _compiling(engine, monster):
        for index in range(2 * rounds):
            fields = {f"field{index}": {"type": "integer"}, "name": {"type": "string"}}
            schema = {"type": "object", "properties": fields, "required": list(fields)}
            start = perf_counter()
            await _constrained(engine, JsonSchema(json.dumps(schema)))
            seconds.append(perf_counter() - start)
    return median_row(f"small schema beside {name}", seconds, "s")


@asynccontextmanager
async def _compiling(engine: Engine, monster: Monster) -> AsyncGenerator[None]:
    """`monster` compiles all the time."""
    pressing = asyncio.create_task(_press(engine, monster))
    while not engine.stats.grammars.num_running:
        if pressing.done():
            await pressing
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        pressing.cancel()
        await asyncio.wait({pressing})


async def _press(engine: Engine, monster: Monster) -> None:
    for salt in count():
        try:
            await _constrained(engine, monster(salt))
        except Overloaded:
            continue
        except InvalidRequest as error:
            if "takes longer" not in str(error):  # its deadline has come
                raise


async def _constrained(engine: Engine, constraint: Constraint) -> None:
    call = GenerateCall(
        input_ids=prompt(engine, PROMPT_LEN, 7),
        sampling=SamplingParams(max_new_tokens=64, temperature=0.0),
        constraint=constraint,
    )
    async with aclosing(engine.generate(call)) as chunks:
        await anext(chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    publish("compiling", compiling_rows(args.rounds), args.json)


if __name__ == "__main__":
    main()
