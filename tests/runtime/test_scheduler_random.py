"""Hundreds of random requests, pools and aborts: one final message each, exact books."""

from __future__ import annotations

import random
from typing import Any

import pytest

from espalier.runtime.messages import Choice, Constraint, JsonSchema, LogprobOptions, Regex
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness
from tests.local_grammars import byte_grammars, byte_jumper

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
CONSTRAINTS: list[Constraint | None] = [
    None,
    None,
    Regex("[a-f]{2,9}"),
    Choice(("yes", "no", "perhaps")),
    JsonSchema('{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'),
    Regex("("),  # does not compile
]


@pytest.mark.parametrize(
    ("seed", "pool_tokens", "options"),
    [
        (1, 150, {}),
        (1, 150, {"jumper": byte_jumper()}),
        (2, 90, {"overlap": False}),
        (2, 90, {"overlap": False, "jumper": byte_jumper()}),
        (3, 400, {"max_chunk_len": 5, "max_step_tokens": 16}),
        (4, 120, {"radix_cache": False}),
        (5, 200, {"policy": "fcfs", "max_running_requests": 3}),
    ],
)
def test_a_hundred_random_requests(seed: int, pool_tokens: int, options: dict[str, Any]) -> None:
    rng = random.Random(seed)
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        pool_tokens=pool_tokens,
        grammars=byte_grammars(),
        **options,
    )
    trunk = [rng.randrange(256) for _ in range(60)]
    names: list[str] = []
    for index in range(100):
        _submit_one(rng, harness, trunk, f"q{index}")
        names.append(f"q{index}")
        for _ in range(rng.randrange(4)):
            harness.step()
        if rng.random() < 0.25:
            harness.abort(names[-1 - rng.randrange(min(2, len(names)))])
        if rng.random() < 0.05:
            harness.abort("q")  # a prefix of every id, and nobody's
    harness.run()
    kinds = {o.finish.kind for o in harness.outcomes.values()}
    assert kinds == {"stop", "length", "abort", "error"}
    for outcome in harness.outcomes.values():
        usage = outcome.usage
        assert usage.completion_tokens == len(outcome.ids)
        known = usage.prompt_tokens + usage.forced_tokens  # one has to be computed at the least
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens and usage.cached_tokens < known
    harness.assert_drained()
    harness.close()


def _submit_one(rng: random.Random, harness: Harness, trunk: list[int], rid: str) -> None:
    prompt = trunk[: rng.randrange(1, 60)] + [rng.randrange(256) for _ in range(rng.randrange(4))]
    constraint = rng.choice(CONSTRAINTS)
    harness.submit(
        prompt,
        rid=rid,
        choices=rng.choice([1, 1, 1, 2]),
        constraint=constraint,
        logprobs=rng.choice(
            [None, None, LogprobOptions(top=2), LogprobOptions(prompt_start=rng.randrange(2))]
        ),
        max_new_tokens=rng.choice([0, 1, 3, 8, 20]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(1000),
        stop=rng.choice([(), ("a",), ("zz", "q")]),
        ignore_eos=rng.random() < 0.5,
    )
