"""Greedy ids and log-probabilities equal those of transformers: same file, float32.

transformers reads and dequantises the GGUF file with its own code. Given our whole output it
computes every next-token choice in one pass: if its best token is ours at each position, its
own greedy decoding gives the same ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from espalier.runtime.hub.catalog import default_cache_dir
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.loading import Model
from espalier.runtime.messages import LogprobOptions
from tests.integration.real_harness import TEXTS, harness

NEW = 48
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def reference() -> Any:
    path: Path = resolve_model("smollm2", cache_dir=default_cache_dir()).path
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.eval()
    return model


@torch.inference_mode()
def reference_logits(reference: Any, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(torch.tensor([ids])).logits[0]
    return logits


def test_greedy_ids(model: Model, reference: Any) -> None:
    ours = harness(model, pool_tokens=8192, max_running_requests=40)
    prompts = [model.tokenizer.encode(text) for text in TEXTS]
    outcomes = [ours.submit(prompt, max_new_tokens=NEW) for prompt in prompts]
    ours.run()
    ours.close()
    assert len(prompts) >= 40
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert len(outcome.ids) == NEW
        logits = reference_logits(reference, [*prompt, *outcome.ids])[len(prompt) - 1 : -1]
        for at, (row, chosen) in enumerate(zip(logits, outcome.ids, strict=True)):
            best = int(row.argmax())
            if best != chosen:
                gap = float(row[best] - row[chosen])
                print(f"near-tie: {prompt} token {at}: {best} or {chosen}, gap {gap:.2e}")
                assert gap <= NEAR_TIE, f"token {at} of {prompt}: gap {gap:.3e}"


def test_generate_itself(model: Model, reference: Any) -> None:
    """The same without teacher forcing, on a few prompts, against `generate`."""
    ours = harness(model)
    for text in TEXTS[:3]:
        prompt = model.tokenizer.encode(text)
        outcome = ours.submit(prompt, max_new_tokens=24)
        ours.run()
        ids = torch.tensor([prompt])
        theirs = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )[0].tolist()
        assert outcome.ids == theirs[len(prompt) :]
    ours.close()


def test_logprobs_of_prompt_and_output(model: Model, reference: Any) -> None:
    ours = harness(model, max_chunk_len=7)
    prompt = model.tokenizer.encode(TEXTS[1] + TEXTS[6])
    options = LogprobOptions(prompt_start=0, top=3)
    outcome = ours.submit(prompt, max_new_tokens=8, logprobs=options)
    ours.run()
    ours.close()
    logits = reference_logits(reference, [*prompt, *outcome.ids])
    expected = logits.log_softmax(-1)
    found = [*(outcome.prompt_logprobs or ()), *outcome.logprobs]
    assert [entry.token_id for entry in found] == [*prompt, *outcome.ids]
    assert found[0].logprob is None
    for position, entry in enumerate(found[1:]):
        assert entry.logprob == pytest.approx(float(expected[position, entry.token_id]), abs=2e-4)
        best: Any = expected[position].topk(3)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [v for _, v in entry.top] == pytest.approx(best.values.tolist(), abs=2e-4)
