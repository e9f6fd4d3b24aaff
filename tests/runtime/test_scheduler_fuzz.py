"""Random loads with failing steps, NaN, aborts, flushes, leases and tiny pools, against lone runs.

Whoever is not aborted and does not ask for NaN gets the ids that it gets alone.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from espalier.runtime.messages import LogprobOptions, SchedulingHints
from espalier.runtime.scheduler.control import FlushCache
from tests.fakes import ManualClock, byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.near_ties import explain_difference
from tests.runtime.test_scheduler_faults import (
    BAD_TOKEN,
    FailingRunner,
    weights_with_a_bad_token,
)

CONFIG = tiny_config()
HEAD = tiny_weights(CONFIG).head_VD
WEIGHTS = replace(weights_with_a_bad_token(), head_VD=HEAD)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_load(seed: int) -> None:
    rng = random.Random(seed)
    jobs = _jobs(rng)
    clock = ManualClock()
    longest = max(len(prompt) + sampling["max_new_tokens"] for prompt, sampling in jobs)
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        pool_tokens=longest + rng.randrange(60),
        max_chunk_len=rng.choice([1, 3, 7, 64]),
        overlap=rng.random() < 0.8,
        new_token_reserve=rng.choice([0.0, 0.5]),
        max_running_requests=rng.choice([2, 8]),
        policy=rng.choice(["lpm", "fcfs"]),
        radix_cache=rng.random() < 0.9,
        max_leased_share=rng.choice([0.0, 0.25, 1.0]),
        clock=clock,
    )
    if rng.random() < 0.4:
        harness.wrap_runner(FailingRunner(harness.runner, at=rng.randrange(40)))
    outcomes = _run(rng, harness, clock, jobs)
    harness.assert_drained()
    harness.close()
    for outcome in outcomes:
        _check(outcome)


def _jobs(rng: random.Random) -> list[tuple[list[int], dict[str, Any]]]:
    trunk = [8 + rng.randrange(240) for _ in range(50)]
    jobs: list[tuple[list[int], dict[str, Any]]] = []
    for index in range(rng.randrange(4, 12)):
        prompt = trunk[: rng.randrange(1, 50)] + [8 + rng.randrange(3)] * rng.randrange(3)
        if rng.random() < 0.08:
            prompt.insert(rng.randrange(len(prompt)), BAD_TOKEN)
        sampling: dict[str, Any] = {
            "max_new_tokens": rng.choice([0, 1, 2, 5, 15, 30]),
            "temperature": rng.choice([0.0, 1.0]),
            "seed": index,
            "logit_bias": {BAD_TOKEN: -100.0},
            "logprobs": rng.choice([None, None, LogprobOptions(prompt_start=0, top=1)]),
        }
        jobs.append((prompt, sampling))
    return jobs


def _run(
    rng: random.Random,
    harness: Harness,
    clock: ManualClock,
    jobs: list[tuple[list[int], dict[str, Any]]],
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for prompt, sampling in jobs:
        hints = SchedulingHints(lease_s=rng.choice([0.0, 0.0, 2.0, 50.0]))
        outcomes.append(harness.submit(prompt, hints=hints, **sampling))
        for _ in range(rng.randrange(4)):
            harness.step()
            clock.now += 1
        if rng.random() < 0.1:
            harness.abort(rng.choice(outcomes).request.rid)
        if rng.random() < 0.1:
            harness.scheduler.inbox.put(FlushCache(Future()))
    harness.run(5000)
    return outcomes


def _check(outcome: Outcome) -> None:
    request = outcome.request
    if outcome.finish.kind == "abort":
        return
    if BAD_TOKEN in request.input_ids:
        assert outcome.finish.kind == "error" or request.sampling.max_new_tokens == 0
        return
    lone = Harness(CONFIG, WEIGHTS, byte_vocabulary(), radix_cache=False, check_books=False)
    sampling = {name: getattr(request.sampling, name) for name in ("temperature", "seed")}
    expected = lone.submit(
        request.input_ids.tolist(),
        max_new_tokens=request.sampling.max_new_tokens,
        logit_bias=request.sampling.logit_bias,
        logprobs=request.logprobs,
        **sampling,
    )
    lone.run()
    lone.close()
    explain_difference(CONFIG, WEIGHTS, expected, outcome)
    if request.logprobs is not None:
        assert outcome.prompt_logprobs is not None
        assert [e.token_id for e in outcome.prompt_logprobs] == request.input_ids.tolist()
        assert [e.token_id for e in outcome.logprobs] == outcome.ids
