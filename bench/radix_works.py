"""What bench/radix.py works on: token ids from traces, and random trees. All seeded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espalier.radix.types import IntArray

BLOCK_LEN = 512
NODE_LEN = 8
"""Tokens of every node of a random tree."""
_VOCABULARY = 50_000
_LEAVES_PER_INNER_NODE = 100


@dataclass(frozen=True, slots=True)
class Trace:
    """The prompts of a trace's first requests, in the order in which they came."""

    name: str
    prompts: list[IntArray]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))


def read_trace(file: Path, max_tokens: int) -> Trace:
    """The first requests of a Mooncake trace, up to `max_tokens` in all.

    A line names its prompt's blocks by `hash_ids`; equal ids are equal tokens behind equal
    prefixes. Each id becomes 512 random tokens of its own; the last block is cut.
    """
    prompts: list[IntArray] = []
    room = max_tokens
    with file.open() as lines:
        for line in lines:
            request = json.loads(line)
            prompt = np.concatenate([_block(block) for block in request["hash_ids"]])
            prompts.append(prompt[: request["input_length"]].copy())
            room -= len(prompts[-1])
            if room <= 0:
                break
    return Trace(file.stem.removeprefix("mooncake_").removesuffix("_trace"), prompts)


def _block(block: int) -> IntArray:
    rng = np.random.default_rng(block)
    return rng.integers(0, _VOCABULARY, BLOCK_LEN, dtype=np.int32)


def random_tree(num_leaves: int, seed: int = 0) -> list[IntArray]:
    """Paths, parents before children, that make a random tree when they are put in, in order.

    An inner node hangs below a random earlier one, then each leaf below a random inner node.
    Every node has `NODE_LEN` tokens, so that evicting one is evicting so many tokens.
    """
    rng = np.random.default_rng(seed)
    inner: list[IntArray] = [np.empty(0, np.int32)]
    leaves: list[IntArray] = []
    num_inner = max(1, num_leaves // _LEAVES_PER_INNER_NODE)
    for index in range(num_inner + num_leaves):
        parent = inner[int(rng.integers(len(inner)))]
        run = rng.integers(0, _VOCABULARY, NODE_LEN, dtype=np.int32)
        run[0] = index  # no two begin alike, so that each path adds exactly one node
        (inner if index < num_inner else leaves).append(np.concatenate([parent, run]))
    return inner[1:] + leaves
