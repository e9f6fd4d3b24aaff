"""Schedule invariance on the real model: same output whatever the schedule, greedy and sampled."""

from __future__ import annotations

from typing import Any

import pytest

from espalier.runtime.loading import Model
from espalier.runtime.messages import LogprobOptions
from espalier.runtime.models.packed import is_packed
from tests.harness import Harness, Outcome
from tests.integration.real_harness import TEXTS, harness, load_as
from tests.native_kernels import NATIVE
from tests.near_ties import explain_difference

FLOAT32, _, _, Q4 = NATIVE

SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "cache off": {"radix_cache": False},
    "chunk 1": {"max_chunk_len": 1},
    "chunk 7": {"max_chunk_len": 7},
    "chunk 64": {"max_chunk_len": 64},
    "batch 1": {"max_running_requests": 1},
    "batch 5, plain": {"max_running_requests": 5, "overlap": False},
    "retraction": {"pool_tokens": 150, "new_token_reserve": 0.0},
    "retraction, no cache, plain": {
        "pool_tokens": 150,
        "new_token_reserve": 0.0,
        "radix_cache": False,
        "overlap": False,
    },
}


def load(model: Model, harness: Harness) -> list[Outcome]:
    """Forks of one trunk and lone prompts; greedy, and sampled with seeds."""
    encode = model.tokenizer.encode
    trunk = encode(TEXTS[1] + " there lived a clockmaker whose clocks all told different times.")
    outcomes: list[Outcome] = []
    for index in range(4):
        branch = trunk + encode(TEXTS[20 + index])
        outcomes.append(harness.submit(branch, max_new_tokens=12, logprobs=LogprobOptions(top=2)))
        outcomes.append(
            harness.submit(branch, max_new_tokens=12, temperature=0.8, top_p=0.95, seed=index)
        )
    outcomes.append(harness.submit(trunk, max_new_tokens=16, temperature=1.2, top_k=50, seed=7))
    for index in range(6):
        outcomes.append(
            harness.submit(
                encode(TEXTS[index]),
                max_new_tokens=12,
                temperature=0.4 * index,
                repetition_penalty=1.1,
                seed=100 + index,
            )
        )
    return outcomes


def run(model: Model, **options: Any) -> tuple[list[Outcome], Harness]:
    driven = harness(model, **options)
    outcomes = load(model, driven)
    driven.run()
    driven.assert_drained()
    driven.close()
    return outcomes, driven


@pytest.fixture(scope="module", params=["torch", FLOAT32, Q4])
def any_model(request: pytest.FixtureRequest) -> Model:
    return load_as(request.param)


@pytest.fixture(scope="module")
def baseline(any_model: Model) -> list[Outcome]:
    return run(any_model)[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_outputs_do_not_depend_on_the_schedule(
    any_model: Model, baseline: list[Outcome], name: str
) -> None:
    """Bit for bit on the native kernels; on torch's, ids may differ at near-ties."""
    outcomes, driven = run(any_model, **SCHEDULES[name])
    if "retraction" in name:
        assert driven.scheduler.stats.num_retractions > 0, "the pool was too large to matter"
    for expected, got in zip(baseline, outcomes, strict=True):
        if is_packed(any_model.weights):
            assert got.ids == expected.ids
            assert got.logprobs == expected.logprobs
        else:
            explain_difference(any_model.config, any_model.weights, expected, got)
