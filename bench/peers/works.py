"""The works that contenders are measured on: prompts of exact lengths, and a run's figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from bench.peers.completions import Endpoint, WrongAnswer, complete_all
from bench.peers.documents import write_documents
from bench.report import Better

_STREAMS = 16
_IDS = range(1_000, 40_000)  # none is a control token

Figures = Mapping[str, float]

DECODE = "decode, 1 stream, 16 in, 64 out"
PREFILL = "prefill, 1,024 tokens"
BATCH = "batch 16, 134 in, 64 out"
COLD = "16 x (1,024 shared + 38), 16 out: cold"
WARM = "16 x (1,024 shared + 38), 16 out: warm"
JSON_1 = "JSON of a schema, 1 stream: valid documents"
JSON_8 = "JSON of a schema, 8 streams: valid documents"
JSON_VALID = "JSON of a schema, 8 streams: valid of 8"


@dataclass(frozen=True, slots=True)
class Work:
    """`measure` runs it once and gives a value of each of `figures`, which have units.

    What is random comes from the generator, so that equal generators give equal prompts.
    """

    figures: Mapping[str, str]
    better: Better
    measure: Callable[[Endpoint, Random], Figures]
    num_warm_ups: int  # rounds that are run first and not counted


def fresh_ids(random: Random, length: int) -> list[int]:
    """Ids that no cache has seen."""
    return random.choices(_IDS, k=length)


def _decode(endpoint: Endpoint, random: Random) -> Figures:
    """Tokens a second from the first to the last."""
    new = 64
    [served] = asyncio.run(complete_all(endpoint, [fresh_ids(random, 16)], new))
    if served.ttft_s > served.end_s / 2:  # the times say nothing of when they were computed
        raise WrongAnswer(f"half of the time was over when the first of {new} tokens came")
    return {DECODE: (new - 1) / (served.end_s - served.ttft_s)}


def _prefill(endpoint: Endpoint, random: Random) -> Figures:
    """Prompt tokens a second, by the time to the first token."""
    length = 1024
    [served] = asyncio.run(complete_all(endpoint, [fresh_ids(random, length)], 1))
    return {PREFILL: length / served.ttft_s}


def _batch(endpoint: Endpoint, random: Random) -> Figures:
    """Output tokens a second of all streams, prefill included."""
    new = 64
    prompts = [fresh_ids(random, 134) for _ in range(_STREAMS)]
    return {BATCH: _STREAMS * new / _seconds(endpoint, prompts, new)}


def _shared(endpoint: Endpoint, random: Random) -> Figures:
    """Seconds. Cold: the prefix is new. Warm: it was served just before, with other ends."""
    prefix = fresh_ids(random, 1024)
    seconds: dict[str, float] = {}
    for figure in (COLD, WARM):
        prompts = [prefix + fresh_ids(random, 38) for _ in range(_STREAMS)]
        seconds[figure] = _seconds(endpoint, prompts, 16)
    return seconds


def _json(endpoint: Endpoint, random: Random) -> Figures:
    """A second. One stream: four documents, one after the other."""
    alone = [write_documents(endpoint, random, 1) for _ in range(4)]
    valid, seconds = write_documents(endpoint, random, 8)
    return {
        JSON_1: sum(v for v, _ in alone) / sum(s for _, s in alone),
        JSON_8: valid / seconds,
        JSON_VALID: valid,
    }


def _seconds(endpoint: Endpoint, prompts: list[list[int]], new: int) -> float:
    """Until the last of them, which all start together, has its last token."""
    return max(served.end_s for served in asyncio.run(complete_all(endpoint, prompts, new)))


WORKS = {
    "decode": Work({DECODE: "tok/s"}, "higher", _decode, 1),
    "prefill": Work({PREFILL: "tok/s"}, "higher", _prefill, 1),
    "batch": Work({BATCH: "tok/s"}, "higher", _batch, 1),
    "shared": Work(
        {COLD: "s", WARM: "s"}, "lower", _shared, 0
    ),  # its steps are those of the others
    "json": Work({JSON_1: "1/s", JSON_8: "1/s", JSON_VALID: ""}, "higher", _json, 1),
}
