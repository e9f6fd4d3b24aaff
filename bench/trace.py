"""Requests of a Mooncake trace, scaled down; knows token ids and arrivals, no scheduler.

A line of a trace has a timestamp (ms), an input and an output length in tokens, and the hash ids
of its prompt's blocks of 512 tokens: equal ids are equal blocks with all that goes before them.
Scaled by n, a block has 512 / n tokens, made up from its hash id, and outputs have 1 / n of theirs.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

BLOCK = 512
NUM_PRIORITIES = 3
HOG = "hog"  # the tenant of 7 conversations in 10
_FIRST_MARK = 1 << 29  # ids from here on end one prompt each


class TraceLine(msgspec.Struct, frozen=True):
    """As the trace has it."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request; `arrival` runs from 0 to 1 over the trace.

    A conversation is what begins with the same two blocks: the first one all requests share.
    `turns_left` are its requests that are still to come, this one included.
    """

    index: int
    arrival: float
    ids: npt.NDArray[np.int32]
    num_new: int
    conversation: int
    turns_left: int

    @property
    def priority(self) -> int:
        return self.conversation % NUM_PRIORITIES

    @property
    def tenant(self) -> str:
        number = self.conversation % 10
        return HOG if number < 7 else f"tenant {number}"


def read_trace(file: Path, count: int, scale: int) -> list[TracedRequest]:
    """The first `count` requests, in order of arrival."""
    with file.open() as lines:
        trace = [msgspec.convert(json.loads(line), TraceLine) for line in islice(lines, count)]
    return scaled(trace, scale)


def scaled(trace: list[TraceLine], scale: int) -> list[TracedRequest]:
    """Requests from the lines of a trace, whose lengths are divided by `scale`."""
    assert BLOCK % scale == 0, f"{scale} does not divide a block of {BLOCK} tokens"
    turns_left = Counter(_beginning(line) for line in trace)
    numbers: dict[tuple[int, ...], int] = {}
    first, last = trace[0].timestamp, trace[-1].timestamp
    requests: list[TracedRequest] = []
    for index, line in enumerate(trace):
        beginning = _beginning(line)
        request = TracedRequest(
            index=index,
            arrival=(line.timestamp - first) / max(1, last - first),
            ids=_prompt(line, index, scale),
            num_new=max(1, line.output_length // scale),
            conversation=numbers.setdefault(beginning, len(numbers)),
            turns_left=turns_left[beginning],
        )
        turns_left[beginning] -= 1
        requests.append(request)
    return requests


def index_of(last_id: int) -> int | None:
    """Which request's prompt ends with this id; None if none does."""
    return last_id - _FIRST_MARK if last_id >= _FIRST_MARK else None


def _beginning(line: TraceLine) -> tuple[int, ...]:
    return tuple(line.hash_ids[:2])


def _prompt(line: TraceLine, index: int, scale: int) -> npt.NDArray[np.int32]:
    """Ends with an id of its own, by which it is known again; that token is computed anyway."""
    size = BLOCK // scale
    blocks = np.array(line.hash_ids, np.int32)[:, None] * size + np.arange(size, dtype=np.int32)
    ids = blocks.reshape(-1).astype(np.int32)[: max(1, -(-line.input_length // scale))].copy()
    ids[-1] = _FIRST_MARK + index
    return ids
