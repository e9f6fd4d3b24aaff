"""The sampler against its definition, written out in numpy one token at a time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from espalier.kernels.noise import gumbel_noise
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import (
    NO_TOKEN,
    NOT_FINITE,
    Sampled,
    SampleRow,
    sample,
)
from tests.significance import chi_square_z

Floats = npt.NDArray[np.float32]


def row(
    params: SamplingParams | None = None,
    *,
    seed: int = 0,
    position: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: tuple[int, ...] = (),
    allowed: Sequence[int] | None = None,
    num_top: int | None = None,
) -> SampleRow:
    return SampleRow(
        params=params or SamplingParams(),
        seed=seed,
        choice=0,
        position=position,
        prompt_ids=np.array(prompt, np.int32),
        output_ids=np.array(output, np.int32),
        banned=banned,
        bitmask=None if allowed is None else bitmask_of(allowed),
        num_top=num_top,
    )


def bitmask_of(allowed: Sequence[int], num_words: int = 8) -> npt.NDArray[np.int32]:
    words = [0] * num_words
    for token_id in allowed:
        words[token_id // 32] |= 1 << token_id % 32
    return np.array(words, np.uint32).view(np.int32)


def adjusted(logits: Floats, row: SampleRow) -> npt.NDArray[np.float64]:
    """Step by step as documented, in float64."""
    params = row.params
    assert row.prompt_ids is not None and row.output_ids is not None
    values = logits.astype(np.float64)
    counts = Counter(int(token_id) for token_id in row.output_ids)
    for token_id in {*(int(token_id) for token_id in row.prompt_ids), *counts}:
        factor = params.repetition_penalty
        values[token_id] *= 1 / factor if values[token_id] > 0 else factor
    for token_id, count in counts.items():
        values[token_id] -= params.frequency_penalty * count + params.presence_penalty
    for token_id, bias in params.logit_bias.items():
        values[token_id] += bias
    for token_id in range(len(values)):
        masked = row.bitmask is not None and not (
            int(row.bitmask[token_id // 32]) >> token_id % 32 & 1
        )
        if masked or token_id in row.banned:
            values[token_id] = -np.inf
    return values


def kept_ids(values: npt.NDArray[np.float64], params: SamplingParams) -> list[int]:
    """What top_k, top_p and min_p leave, ties included."""
    ids = sorted((i for i in range(len(values)) if values[i] > -np.inf), key=lambda i: -values[i])
    if params.top_k != -1:
        threshold = values[ids[min(params.top_k, len(ids)) - 1]]
        ids = [i for i in ids if values[i] >= threshold]
    weights = {i: math.exp((values[i] - values[ids[0]]) / params.temperature) for i in ids}
    total = math.fsum(weights.values())
    if params.top_p < 1:
        sums = itertools.accumulate(weights[i] for i in ids)
        needed = sum(1 for reached in sums if reached < params.top_p * total)
        last = ids[min(needed, len(ids) - 1)]
        ids = [i for i in ids if values[i] >= values[last]]
    return [i for i in ids if weights[i] >= params.min_p]


# Logits of few distinct values make ties; none lie so close that float32 matters.
logits_lists = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=200)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_p=st.sampled_from([1e-6, 0.137, 0.5131, 0.9137, 1.0]),
    top_k=st.sampled_from([-1, 1, 2, 5, 50, 10_000]),
    min_p=st.sampled_from([0.0, 0.0103, 0.2017, 1.0]),
)


@given(logits_lists, some_params, st.integers(0, 2**40), st.data())
@settings(max_examples=200, deadline=None)
def test_filters_and_choice_follow_the_definition(
    values: list[float], params: SamplingParams, seed: int, data: st.DataObject
) -> None:
    logits = np.array(values, np.float32)
    ids = st.integers(0, len(logits) - 1)
    banned = tuple(data.draw(st.lists(ids, max_size=3)))
    allowed = data.draw(st.none() | st.lists(ids, min_size=1, max_size=20))
    bias = data.draw(st.dictionaries(ids, st.sampled_from([-3.0, 2.5]), max_size=3))
    params = msgspec.structs.replace(params, logit_bias=bias)
    request = row(params, seed=seed, banned=banned, allowed=allowed)
    values64 = adjusted(logits, request)
    sampled = sample(torch.as_tensor(logits)[None], [request])[0]
    if np.all(values64 == -np.inf):
        assert sampled == Sampled(-1, failure=NO_TOKEN)
        return
    kept = kept_ids(values64, request.params)
    noise = gumbel_noise(seed, 0, 0, torch.tensor(kept)).double().numpy()
    scores = values64[kept] / request.params.temperature + noise
    ordered = np.sort(scores)
    assume(len(ordered) == 1 or ordered[-1] - ordered[-2] > 1e-9)
    assert sampled == Sampled(kept[int(np.argmax(scores))])


@given(logits_lists, st.data())
@settings(max_examples=100, deadline=None)
def test_greedy_takes_the_lowest_of_the_best_ids(values: list[float], data: st.DataObject) -> None:
    logits = np.array(values, np.float32)
    ids = st.integers(0, len(logits) - 1)
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 2.0])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.25, -1.0])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        logit_bias=data.draw(st.dictionaries(ids, st.sampled_from([-3.0, 2.5]), max_size=2)),
    )
    request = row(
        params,
        prompt=data.draw(st.lists(ids, max_size=6)),
        output=data.draw(st.lists(ids, max_size=12)),
        banned=tuple(data.draw(st.lists(ids, max_size=2))),
        allowed=data.draw(st.none() | st.lists(ids, min_size=1, max_size=9)),
    )
    expected = adjusted(logits, request)
    sampled = sample(torch.as_tensor(logits)[None], [request])[0]
    if np.all(expected == -np.inf):
        assert sampled == Sampled(-1, failure=NO_TOKEN)
    else:
        assert sampled == Sampled(int(np.argmax(expected)))


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[4.0, -2.0, 3.0, 1.0]])

    def winner(repetition: float = 1.0, frequency: float = 0.0, presence: float = 0.0) -> int:
        asked = SamplingParams(
            temperature=0.0,
            repetition_penalty=repetition,
            frequency_penalty=frequency,
            presence_penalty=presence,
        )
        return sample(logits, [row(asked, prompt=[0], output=[2, 2])])[0].token_id

    assert winner() == 0
    assert winner(repetition=1.5) == 0  # 4 / 1.5 = 2.67 against 3 / 1.5 = 2
    assert winner(repetition=0.5, frequency=-1.25) == 2  # 8 < 6 + 2.5
    assert winner(frequency=-0.5) == 0  # 3 + 2 * 0.5 ties with 4: the lower id
    assert winner(frequency=-0.6) == 2  # 3 + 2 * 0.6, once for each occurrence
    assert winner(presence=-0.6) == 0  # 3 + 0.6, once
    assert winner(presence=-1.1) == 2


def test_a_repetition_penalty_makes_negative_logits_more_negative() -> None:
    logits = torch.tensor([[-1.0, -1.5, -3.0]])
    asked = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert sample(logits, [row(asked, prompt=[0])])[0].token_id == 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), [0.5, 0.25, 0.125, 0.125]),
        (SamplingParams(temperature=0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (SamplingParams(top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (SamplingParams(top_k=3), [0.5, 0.25, 0.125, 0.125]),  # the third and fourth tie
        (SamplingParams(top_p=0.74), [2 / 3, 1 / 3, 0, 0]),
        (SamplingParams(top_p=0.76), [0.5, 0.25, 0.125, 0.125]),
        (SamplingParams(min_p=0.4), [2 / 3, 1 / 3, 0, 0]),
        (SamplingParams(top_k=2, top_p=0.6), [1, 0, 0, 0]),  # top_p of what top_k left
        (SamplingParams(logit_bias={0: -100.0}), [0, 0.5, 0.25, 0.25]),
    ],
)
def test_distribution(params: SamplingParams, expected: list[float]) -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    num_draws = 20_000 if params == SamplingParams() else 3_000
    counts = np.zeros(4)
    for position in range(0, num_draws, 500):
        rows = [row(params, seed=7, position=position + i) for i in range(500)]
        drawn = sample(logits.expand(500, 4), rows)
        counts += np.bincount([s.token_id for s in drawn], minlength=4)
    means = np.array(expected) * num_draws
    assert np.all(counts[means == 0] == 0)
    possible = means > 0
    if np.count_nonzero(possible) > 1:
        assert abs(chi_square_z(counts[possible], means[possible])) < 3.5


@given(st.integers(0, 2**31), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_a_row_does_not_depend_on_its_batch(seed: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(rng.normal(size=(num_rows, 100)) * 3, dtype=torch.float32)
    kinds = [
        row(SamplingParams(temperature=0.0), num_top=2),
        row(SamplingParams(), seed=seed),
        row(SamplingParams(top_p=0.7, repetition_penalty=1.3), seed=seed, prompt=[1, 2, 3]),
        row(SamplingParams(top_k=3), seed=seed, allowed=range(0, 100, 7), num_top=0),
        row(SamplingParams(), banned=tuple(range(100))),
    ]
    rows = [replace(kinds[int(rng.integers(len(kinds)))], position=i) for i in range(num_rows)]
    before = logits.clone()
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(num_rows)]
    assert together == alone
    assert torch.equal(logits, before)


def test_the_nucleus_is_found_beyond_the_first_look() -> None:
    """A flat distribution over many tokens, where top_p needs thousands of them."""
    size, top_p = 20_000, 0.5
    logits = torch.linspace(0, -1e-3, size)
    weights = logits.double().exp().numpy()
    needed = 1 + int(np.count_nonzero(np.cumsum(weights) < top_p * weights.sum()))
    asked = SamplingParams(top_p=top_p)
    rows = [row(asked, position=i) for i in range(40)]
    drawn = [s.token_id for s in sample(logits.expand(40, size), rows)]
    assert max(drawn) < needed and max(drawn) > 0.9 * needed


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    logits = torch.tensor([[1.0, 1.001, -50.0]])
    assert sample(logits, [row(SamplingParams(temperature=1e-300))])[0].token_id == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_fail_their_row_alone(value: float, temperature: float) -> None:
    logits = torch.zeros(3, 50)
    logits[1, 49] = value
    results = sample(logits, [row(SamplingParams(temperature=temperature), num_top=1)] * 3)
    assert [r.failure for r in results] == [None, NOT_FINITE, None]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_is_a_failure(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits = torch.zeros(1, 50)
    failed = [Sampled(-1, failure=NO_TOKEN)]
    assert sample(logits, [row(params, allowed=[])]) == failed
    assert sample(logits, [row(params, banned=(7,), allowed=[7])]) == failed
    assert sample(torch.full((1, 50), -math.inf), [row(params)]) == failed
    masked = torch.full((1, 50), -math.inf)
    masked[0, 9] = -3.0
    assert sample(masked, [row(params)]) == [Sampled(9)]


def test_the_last_bit_of_a_word_is_a_token_too() -> None:
    logits = torch.zeros(1, 64)
    for token_id in (0, 31, 32, 63):
        for temperature in (0.0, 1.0):
            asked = row(SamplingParams(temperature=temperature), allowed=[token_id])
            assert sample(logits, [asked]) == [Sampled(token_id)]


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 5), []) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]], dtype=dtype)
    results = [
        sample(logits, [row(SamplingParams(temperature=t, top_k=1), num_top=1)])[0]
        for t in (0.0, 1.0)
    ]
    assert results[0] == results[1]
    assert results[0].token_id == 1
    assert results[0].logprob == pytest.approx(2 - math.log(1 + math.e + math.e**2), abs=1e-5)


def test_extreme_penalties_never_fail_their_neighbours() -> None:
    """A tiny repetition penalty makes logits infinite; a row's trouble is its own."""
    ids = np.arange(5)
    extreme = SamplingParams(repetition_penalty=1e-38, min_p=0.5, temperature=1.0, seed=0)
    plain = SamplingParams(temperature=0.0)
    logits = torch.linspace(-3, 9, 2 * 12).view(2, 12)
    first, second = sample(
        logits,
        [
            SampleRow(extreme, seed=0, choice=0, position=5, prompt_ids=ids, output_ids=ids),
            SampleRow(plain, seed=0, choice=0, position=5),
        ],
    )
    assert first.failure is None and first.token_id in range(12)
    assert second.token_id == 11
