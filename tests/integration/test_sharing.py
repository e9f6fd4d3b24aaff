"""What the cache saves on the real model."""

from __future__ import annotations

from espalier.runtime.loading import Model
from tests.integration.real_harness import TEXTS, harness


def long_prompt(model: Model, length: int) -> list[int]:
    ids = model.tokenizer.encode("\n".join(TEXTS) * 4)
    assert len(ids) >= length
    return ids[:length]


def test_a_thousand_shared_tokens_come_from_the_cache(model: Model) -> None:
    driven = harness(model, context_len=1200)
    shared = long_prompt(model, 1000)
    driven.submit([*shared, 5, 6, 7], max_new_tokens=2)
    driven.run()
    second = driven.submit([*shared, 8, 9], max_new_tokens=2)
    driven.run()
    driven.close()
    assert second.usage.cached_tokens >= 999


def test_eight_equal_prompts_at_once_compute_about_one(model: Model) -> None:
    driven = harness(model, context_len=1200, max_chunk_len=256)
    outcomes = [driven.submit(long_prompt(model, 1000), max_new_tokens=1) for _ in range(8)]
    driven.run()
    driven.close()
    assert driven.scheduler.stats.num_computed_tokens == 1000 + 7
    assert len({tuple(o.ids) for o in outcomes}) == 1
