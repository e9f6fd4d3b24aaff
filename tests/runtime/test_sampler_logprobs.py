"""Log-probabilities: log-softmax of the raw logits, whatever was done to choose the token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.sampling.logprobs import logprobs_of
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import SampleRow, sample


@given(
    st.integers(0, 6), st.integers(1, 300), st.integers(0, 400), st.booleans(), st.integers(0, 99)
)
@settings(max_examples=80, deadline=None)
def test_against_numpy(
    num_rows: int, vocabulary: int, num_top: int, has_ties: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, vocabulary)) * 4
    logits = (np.round(logits) if has_ties else logits).astype(np.float32)
    targets = [int(t) for t in rng.integers(0, vocabulary, num_rows)]
    found = logprobs_of(torch.as_tensor(logits), targets, num_top)
    assert [entry.token_id for entry in found] == targets
    for entry, values, target in zip(found, logits.astype(np.float64), targets, strict=True):
        logprobs = values - np.logaddexp.reduce(values)
        assert entry.logprob == pytest.approx(logprobs[target], abs=1e-4)
        best = sorted(range(vocabulary), key=lambda i: (-logprobs[i], i))[:num_top]
        assert [token_id for token_id, _ in entry.top] == best
        assert [value for _, value in entry.top] == pytest.approx(logprobs[best], abs=1e-4)


def test_sampled_logprobs_ignore_temperature_penalties_bias_and_masks() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    row = SampleRow(
        params=SamplingParams(
            temperature=0.1, top_k=1, logit_bias={0: -100.0}, presence_penalty=2.0
        ),
        seed=0,
        choice=0,
        position=0,
        prompt_ids=np.array([], np.int32),
        output_ids=np.array([1], np.int32),
        bitmask=np.array([0b110], np.int32),
        num_top=2,
    )
    sampled = sample(logits, [row])[0]
    assert sampled.token_id == 2
    assert sampled.logprob == pytest.approx(np.log(0.25), abs=1e-6)
    assert [token_id for token_id, _ in sampled.top] == [0, 1]
    assert [value for _, value in sampled.top] == pytest.approx(np.log([0.5, 0.25]), abs=1e-6)


def test_log_probabilities_come_only_where_asked_for() -> None:
    rows = [
        SampleRow(params=SamplingParams(), seed=0, choice=0, position=0, num_top=num_top)
        for num_top in (None, 0, 1)
    ]
    plain, bare, one = sample(torch.zeros(3, 4), rows)
    assert plain.logprob is None and plain.top == ()
    assert bare.logprob == pytest.approx(np.log(0.25)) and bare.top == ()
    assert len(one.top) == 1
