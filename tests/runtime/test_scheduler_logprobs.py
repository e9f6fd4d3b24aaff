"""Log-probabilities of prompts: whole, once, and the same whatever was cached or retracted."""

from __future__ import annotations

from functools import cache

import pytest

from espalier.runtime.messages import LogprobOptions
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.near_ties import logits_after

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
PROMPT = [(i * 11 + 3) % 256 for i in range(50)]


@cache
def logprob_at(position: int) -> float | None:
    """Of PROMPT's token there, from one whole forward pass over all before it."""
    if position == 0:
        return None
    logits = logits_after(CONFIG, WEIGHTS, PROMPT[:position])
    return float(logits.log_softmax(-1)[PROMPT[position]])


def check(outcome: Outcome, prompt: list[int], start: int) -> None:
    found = outcome.prompt_logprobs
    assert found is not None
    assert [entry.token_id for entry in found] == prompt[start:]
    for position, entry in enumerate(found, start):
        value = logprob_at(position)
        assert entry.logprob == (None if value is None else pytest.approx(value, abs=1e-3))


@pytest.mark.parametrize("start", [0, 1, 2, 25, 49, 50])
@pytest.mark.parametrize("max_new_tokens", [0, 3])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_from_any_start_cold_and_cached(start: int, max_new_tokens: int, chunk: int) -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), max_chunk_len=chunk)
    options = LogprobOptions(prompt_start=start)
    outcomes: list[Outcome] = []
    for _ in range(2):
        outcomes.append(harness.submit(PROMPT, max_new_tokens=max_new_tokens, logprobs=options))
        harness.run()
        check(outcomes[-1], PROMPT, start)
        assert len(outcomes[-1].ids) == len(outcomes[-1].logprobs) == max_new_tokens
    assert outcomes[-1].usage.cached_tokens == min(max(start - 1, 0), len(PROMPT) - 1)
    harness.assert_drained()
    harness.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_while_others_compute_the_same_prompt(overlap: bool) -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), max_chunk_len=9, overlap=overlap)
    starts = [None, 0, 10, None, 30, 49]
    outcomes = [
        harness.submit(PROMPT, max_new_tokens=4, logprobs=LogprobOptions(prompt_start=start, top=2))
        for start in starts
    ]
    harness.run()
    for start, outcome in zip(starts, outcomes, strict=True):
        if start is None:
            assert outcome.prompt_logprobs is None
        else:
            check(outcome, PROMPT, start)
    harness.assert_drained()
    harness.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_once_even_when_retracted_in_the_middle_of_the_prompt(overlap: bool) -> None:
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        pool_tokens=52,
        max_chunk_len=2,
        overlap=overlap,
        new_token_reserve=0.0,
    )
    older = harness.submit(PROMPT[:10], max_new_tokens=40)
    harness.step()
    newer = harness.submit(PROMPT[:30], max_new_tokens=4, logprobs=LogprobOptions(prompt_start=0))
    harness.run()
    assert newer.usage.num_retractions > 0 or older.usage.num_retractions > 0
    check(newer, PROMPT[:30], 0)
    harness.assert_drained()
    harness.close()
