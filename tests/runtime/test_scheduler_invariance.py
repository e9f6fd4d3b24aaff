"""The tokens a request gets do not depend on the schedule; a tiny random model.

On native kernels bit for bit: ids and log-probabilities are equal. On torch's, ids may differ at
near-ties. The oracle for greedy output is transformers' Llama with the same weights, one whole
forward pass a token.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.runtime.messages import LogprobOptions
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.native_kernels import KERNELS, NATIVE, Kernels, held_by
from tests.near_ties import explain_difference
from tests.transformers_oracle import transformers_llama

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)

SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "cache off": {"radix_cache": False},
    "chunk 1": {"max_chunk_len": 1},
    "chunk 7": {"max_chunk_len": 7},
    "chunk 64": {"max_chunk_len": 64},
    "small budget": {"max_step_tokens": 16},
    "batch 1": {"max_running_requests": 1},
    "batch 3": {"max_running_requests": 3, "overlap": False},
    "fcfs": {"policy": "fcfs"},
    "tiny pool": {"pool_tokens": 190},
    "tiny pool, plain": {"pool_tokens": 190, "overlap": False, "new_token_reserve": 0.0},
    "tiny pool, no cache": {"pool_tokens": 190, "radix_cache": False, "new_token_reserve": 0.0},
}


def load(harness: Harness) -> list[Outcome]:
    """Forks of shared prefixes, equal prompts, lone ones; greedy and sampled."""
    trunk = [(i * 13 + 5) % 256 for i in range(70)]
    outcomes: list[Outcome] = []
    for index in range(4):
        branch = [*trunk[: 50 + 5 * index], index]
        outcomes.append(harness.submit(branch, max_new_tokens=14 + index))
        outcomes.append(
            harness.submit(branch, max_new_tokens=12, temperature=0.9, top_p=0.95, seed=index)
        )
    outcomes.append(harness.submit(trunk, max_new_tokens=20, temperature=1.3, top_k=40, seed=9))
    outcomes.append(harness.submit(trunk, max_new_tokens=20, temperature=0.7, min_p=0.02, seed=10))
    for index in range(4):
        alone = [(i * 29 + 41 * index) % 256 for i in range(3 + 17 * index)]
        outcomes.append(
            harness.submit(
                alone,
                max_new_tokens=16,
                temperature=0.5 * index,
                seed=-index,
                frequency_penalty=0.3,
                repetition_penalty=1.2,
            )
        )
    with_logprobs = LogprobOptions(top=3)
    outcomes.append(harness.submit(trunk, max_new_tokens=10, logprobs=with_logprobs))
    outcomes.append(harness.submit(trunk, max_new_tokens=10, stop=("\x07", "ab")))
    outcomes.append(harness.submit([5], max_new_tokens=30))
    return outcomes


def run(kernels: Kernels, **options: Any) -> tuple[list[Outcome], Harness]:
    harness = Harness(CONFIG, held_by(kernels, WEIGHTS, CONFIG), byte_vocabulary(), **options)
    outcomes = load(harness)
    harness.run()
    harness.assert_drained()
    harness.close()
    return outcomes, harness


@pytest.fixture(scope="module")
def baseline(request: pytest.FixtureRequest) -> tuple[Kernels, list[Outcome]]:
    return request.param, run(request.param)[0]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("baseline", ["torch", *NATIVE], indirect=True)
def test_outputs_do_not_depend_on_the_schedule(
    name: str, baseline: tuple[Kernels, list[Outcome]]
) -> None:
    kernels, whole = baseline
    outcomes, harness = run(kernels, **SCHEDULES[name])
    if "tiny pool" in name:
        assert harness.scheduler.stats.num_retractions > 0, "the pool was too large to matter"
    for expected, got in zip(whole, outcomes, strict=True):
        if kernels == "torch":
            explain_difference(CONFIG, WEIGHTS, expected, got)
            assert got.finish == expected.finish or got.ids != expected.ids
        else:
            assert got.ids == expected.ids
            assert got.logprobs == expected.logprobs
            assert got.finish == expected.finish


@pytest.mark.parametrize("kernels", KERNELS)
def test_greedy_ids_equal_transformers(kernels: Kernels) -> None:
    model = transformers_llama(CONFIG, WEIGHTS)
    harness = Harness(CONFIG, held_by(kernels, WEIGHTS, CONFIG), byte_vocabulary())
    prompts = [[(i * k + k) % 256 for i in range(5 + 9 * k)] for k in range(1, 9)]
    outcomes = [harness.submit(prompt, max_new_tokens=24) for prompt in prompts]
    harness.run()
    harness.close()
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        ids = list(prompt)
        for _ in range(24):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert outcome.ids == ids[len(prompt) :]


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd() -> None:
    alone = Harness(CONFIG, WEIGHTS, byte_vocabulary())
    expected = alone.submit([1, 2, 3], max_new_tokens=30, temperature=1.5, seed=1234)
    alone.run()
    alone.close()
    crowd = Harness(CONFIG, WEIGHTS, byte_vocabulary())
    for index in range(10):
        crowd.submit([1, 2, 3, index], max_new_tokens=30, temperature=1.5, seed=index)
    got = crowd.submit([1, 2, 3], max_new_tokens=30, temperature=1.5, seed=1234)
    crowd.run()
    crowd.close()
    assert got.ids == expected.ids


def test_choices_and_seeds_differ() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary())
    harness.submit([1, 2, 3], rid="a", choices=2, max_new_tokens=30, temperature=8.0, seed=1)
    harness.submit([1, 2, 3], rid="b", choices=1, max_new_tokens=30, temperature=8.0, seed=2)
    harness.run()
    harness.close()
    outputs = [harness.outcomes[key].ids for key in (("a", 0), ("a", 1), ("b", 0))]
    assert len({tuple(ids) for ids in outputs}) == 3
