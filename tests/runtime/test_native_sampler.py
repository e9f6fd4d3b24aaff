"""The native sampler against the torch one, which is its specification."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.kernels.native import why_unavailable
from espalier.runtime.sampling.logprobs import logprobs_of
from espalier.runtime.sampling.native import RESULT, ROW, TOP, NativeSampler
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import (
    NO_TOKEN,
    NOT_FINITE,
    IntArray,
    Sampled,
    SampleRow,
    sample,
)

if (reason := why_unavailable()) is not None:
    pytest.skip(f"no native kernels: {reason}", allow_module_level=True)
from espalier.kernels.pool import Pool, instruction_sets

INSTRUCTION_SETS = instruction_sets()
GREEDY = SamplingParams(temperature=0.0)
NO_BIAS: dict[int, float] = {}


@functools.cache
def sampler(instruction_set: str, num_threads: int = 1) -> NativeSampler:
    return NativeSampler(Pool.start(num_threads, instruction_set))


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest) -> NativeSampler:
    return sampler(request.param)


# -- any row ------------------------------------------------------------------------------

# Few distinct values make ties.
some_logits = st.sampled_from([n / 2 for n in range(-12, 13)] + [-math.inf]) | st.floats(
    -40, 40, width=32
)
logits_lists = st.lists(some_logits, min_size=1, max_size=200)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.1, 0.7, 1.0, 3.0, 100.0]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.137, 0.5131, 0.9137, 1 - 1e-9]),
    top_k=st.sampled_from([-1, -1, 1, 2, 5, 50, 2**31 - 1]),
    min_p=st.sampled_from([0.0, 0.0, 0.0103, 0.2017, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1e-38, 0.7, 1.3, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -1.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.4, -2.0]),
)


@st.composite
def sample_rows(draw: st.DrawFn, vocab_size: int) -> SampleRow:
    ids = st.integers(0, vocab_size - 1)
    bias = draw(st.just(NO_BIAS) | st.dictionaries(ids, st.floats(-100, 100), max_size=4))
    params = draw(some_params)
    is_wide = draw(st.booleans())

    def id_array() -> IntArray:
        drawn = draw(st.lists(ids, max_size=20))
        return np.array(drawn, np.int64) if is_wide else np.array(drawn, np.int32)

    words = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, -1])
    num_words = -(-vocab_size // 32)
    mask = draw(st.none() | st.lists(words, min_size=num_words, max_size=num_words + 1))
    return SampleRow(
        params=msgspec.structs.replace(params, logit_bias=bias),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        choice=draw(st.integers(0, 127)),
        position=draw(st.integers(0, 2**31)),
        prompt_ids=id_array(),
        output_ids=id_array(),
        banned=tuple(draw(st.lists(ids, max_size=3))),
        bitmask=None if mask is None else np.array(mask, np.int32),
        num_top=draw(st.none() | st.integers(0, 250)),
    )


def assert_same(found: Sampled, expected: Sampled) -> None:
    assert (found.token_id, found.failure) == (expected.token_id, expected.failure)
    assert_close(found.logprob, expected.logprob)
    assert_same_top(found.top, expected.top)


def assert_close(found: float | None, expected: float | None) -> None:
    """As close as torch's float32 allows; either may be None, as both must be then."""
    if found is None or expected is None:
        assert found is expected
    else:
        assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)


def assert_same_top(
    found: tuple[tuple[int, float], ...], expected: tuple[tuple[int, float], ...]
) -> None:
    assert [token_id for token_id, _ in found] == [token_id for token_id, _ in expected]
    for (_, value), (_, wanted) in zip(found, expected, strict=True):
        assert_close(value, wanted)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(logits_lists, st.data())
@settings(max_examples=250, deadline=None)
def test_any_row_is_sampled_as_by_torch(
    instruction_set: str, values: list[float], data: st.DataObject
) -> None:
    logits = torch.tensor(values)[None]
    row = data.draw(sample_rows(len(values)))
    before = logits.clone()
    found = sampler(instruction_set).sample(logits, [row])
    assert torch.equal(logits, before)
    assert_same(found[0], sample(logits, [row])[0])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(logits_lists, st.sampled_from([math.nan, math.inf]), st.data())
@settings(max_examples=250, deadline=None)
def test_logits_that_are_not_finite_fail_their_row(
    instruction_set: str, values: list[float], bad: float, data: st.DataObject
) -> None:
    """But where a mask leaves few tokens: of those one is not finite, and there is a choice."""
    row = data.draw(sample_rows(len(values)))
    wrong = data.draw(st.integers(0, len(values) - 1))
    values[wrong] = bad
    logits = torch.tensor(values)[None]
    found = sampler(instruction_set).sample(logits, [row])
    few = allowed_ids(row, len(values))
    if row.num_top is not None or row.bitmask is None or (wrong in few and len(few) > 1):
        assert found == [Sampled(-1, failure=NOT_FINITE)]
    else:
        assert found == sample(logits, [row])
        assert found[0].failure in (None, NO_TOKEN)


def allowed_ids(row: SampleRow, vocab_size: int) -> list[int]:
    """Of the bitmask, less those that are banned."""
    words = np.full(-(-vocab_size // 32), -1, np.int32) if row.bitmask is None else row.bitmask
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size]
    return [int(i) for i in np.flatnonzero(bits) if i not in row.banned]


# -- the whole vocabulary -----------------------------------------------------------------


def vocabulary_logits(kind: str, seed: int, size: int = 49_152) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    kinds: dict[str, npt.NDArray[np.float64]] = {
        "peaked": normal * 3,
        "flat": normal * 1e-3,
        "tied": np.round(normal),
        "ascending": np.linspace(-20, 5, size),
        "equal": np.zeros(size),
        "huge": normal * 1e37,
        "deep": -np.exp(normal * 4),
    }
    return kinds[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["peaked", "flat", "tied", "ascending", "equal", "huge", "deep"])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(),
        SamplingParams(temperature=0.3),
        SamplingParams(temperature=30.0),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.95, temperature=2.0),
        SamplingParams(top_k=40),
        SamplingParams(top_k=20_000, top_p=0.9),
        SamplingParams(min_p=0.05),
    ],
)
def test_a_large_vocabulary(native: NativeSampler, kind: str, params: SamplingParams) -> None:
    logits = torch.as_tensor(vocabulary_logits(kind, seed=5))[None].expand(2, -1)
    rows = [SampleRow(params, seed=11, choice=2, position=position) for position in range(2)]
    assert native.sample(logits, rows) == sample(logits, rows)


@pytest.mark.parametrize("num_allowed", [0, 1, 2, 63, 4096, 4097, 30_000])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=0.6),
        SamplingParams(top_p=0.9, top_k=50),
        SamplingParams(min_p=0.1, temperature=2.0),
        SamplingParams(repetition_penalty=1.3, temperature=0.5),
        SamplingParams(presence_penalty=0.5, frequency_penalty=0.7, temperature=0.0),
        SamplingParams(logit_bias={5: 3.0, 77: -2.0, 40_000: 9.0}),
    ],
)
def test_a_mask_of_any_number_of_tokens(
    native: NativeSampler, num_allowed: int, params: SamplingParams
) -> None:
    rng = np.random.default_rng(num_allowed)
    logits = torch.as_tensor(vocabulary_logits("peaked", seed=9))[None].expand(4, -1)
    seen = rng.integers(0, 49_152, 300)
    rows = [
        masked_row(params, rng.permutation(49_152)[:num_allowed], position, seen, rng)
        for position in range(4)
    ]
    found = native.sample(logits, rows)
    assert found == sample(logits, rows)
    assert [sampled.failure for sampled in found] == [None if num_allowed else NO_TOKEN] * 4
    # Log-probabilities need all logits, and do not change the choice.
    wide = native.sample(logits, [replace(row, num_top=0) for row in rows])
    assert [sampled.token_id for sampled in wide] == [sampled.token_id for sampled in found]


def masked_row(
    params: SamplingParams,
    allowed: npt.NDArray[np.int64],
    position: int,
    seen: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> SampleRow:
    """Some tokens are banned that are not allowed anyway."""
    bits = np.zeros(49_152, np.uint8)
    bits[allowed] = 1
    bitmask = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    others = np.flatnonzero(bits == 0)
    banned = tuple(rng.choice(others, 5).tolist())
    return SampleRow(params, 7, 1, position, seen[:200], seen[200:], banned, bitmask)


def test_of_a_mask_of_few_no_other_logit_is_read(native: NativeSampler) -> None:
    logits = torch.full((1, 49_152), math.nan)
    logits[0, [3, 500]] = torch.tensor([1.0, 2.0])
    bits = np.zeros(49_152, np.uint8)
    bits[[3, 500, 700]] = 1
    bitmask = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    row = SampleRow(GREEDY, 0, 0, 0, banned=(700,), bitmask=bitmask)
    assert native.sample(logits, [row]) == sample(logits, [row]) == [Sampled(500)]
    single = replace(row, banned=(3, 500))
    assert native.sample(logits, [single]) == sample(logits, [single]) == [Sampled(700)]


def test_plain_sampling_finds_the_same_winner_as_without_shortcuts(native: NativeSampler) -> None:
    """Most tokens are dismissed by the bits of their hash alone."""
    for temperature in (0.5, 1.0, 5.0):
        params = SamplingParams(temperature=temperature)
        values = np.stack([vocabulary_logits("peaked", seed, 3_000) for seed in range(40)])
        logits = torch.as_tensor(values)
        rows = [SampleRow(params, seed=i, choice=0, position=i) for i in range(40)]
        assert native.sample(logits, rows) == sample(logits, rows)


def test_rounding_keeps_the_last_token_of_a_nucleus(native: NativeSampler) -> None:
    """Its logit is found again from its score: near zero that is off by many of its units."""
    rng = np.random.default_rng(1)
    for position in range(200):
        logits = torch.tensor([[rng.uniform(0.1, 1), 0.0, -5.0]])
        params = SamplingParams(top_p=0.9, temperature=rng.uniform(0.5, 2))
        row = SampleRow(params, seed=0, choice=0, position=position)
        assert native.sample(logits, [row]) == sample(logits, [row])


def test_a_nucleus_ends_between_almost_equal_logits(native: NativeSampler) -> None:
    logits = torch.tensor([1.0, 0.0, -1e-13]).expand(100, 3)
    params = SamplingParams(top_p=0.7)  # of weights 1, 0.36788 and a little less
    rows = [SampleRow(params, seed=0, choice=0, position=position) for position in range(100)]
    found = native.sample(logits, rows)
    assert found == sample(logits, rows)
    assert {sampled.token_id for sampled in found} == {0, 1}


# -- rows beside each other ---------------------------------------------------------------


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
@settings(max_examples=40, deadline=None)
def test_a_row_is_the_same_bit_for_bit_in_any_company(
    instruction_set: str, seed: int, kinds: list[int], data: st.DataObject
) -> None:
    size = 500
    wide = np.random.default_rng(seed).normal(size=(len(kinds), size + 13)) * 3
    logits = torch.as_tensor(wide.astype(np.float32))[:, :size]  # rows lie apart
    drawn = data.draw(sample_rows(size))
    some = [
        SampleRow(GREEDY, seed=0, choice=0, position=0),
        SampleRow(GREEDY, seed=0, choice=0, position=0, num_top=3),
        SampleRow(SamplingParams(), seed=seed, choice=0, position=0),
        SampleRow(GREEDY, seed=0, choice=0, position=0, banned=tuple(range(size)), num_top=2),
        drawn,
        replace(drawn, num_top=7),
    ]
    rows = [some[kind] for kind in kinds]
    alone = [
        sampler(instruction_set).sample(logits[i : i + 1], [rows[i]])[0] for i in range(len(rows))
    ]
    for num_threads in (1, 2, 3):
        assert sampler(instruction_set, num_threads).sample(logits, rows) == alone


def test_no_rows(native: NativeSampler) -> None:
    assert native.sample(torch.zeros(0, 5), []) == []
    assert native.logprobs_of(torch.zeros(0, 5), [], 3) == []


def test_many_plain_rows(native: NativeSampler) -> None:
    logits = torch.as_tensor(np.random.default_rng(0).normal(size=(300, 70)).astype(np.float32))
    logits[7] = -math.inf
    logits[8, 69] = math.nan
    rows = [SampleRow(GREEDY, seed=0, choice=0, position=0)] * 300
    found = native.sample(logits, rows)
    assert found == sample(logits, rows)
    assert [found[i].failure for i in (6, 7, 8)] == [None, NO_TOKEN, NOT_FINITE]


# -- what is wrong with a row -------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"banned": (5,)}, "not in the vocabulary"),
        ({"banned": (-1,)}, "not in the vocabulary"),
        ({"banned": (2**40,)}, "sampling failed"),
        ({"bitmask": np.zeros(0, np.int32)}, "sampling failed"),
        ({"params": SamplingParams(logit_bias={5: 1.0})}, "not in the vocabulary"),
        ({"params": SamplingParams(presence_penalty=1.0)}, "penalties need the ids"),
        (
            {
                "params": SamplingParams(presence_penalty=1.0),
                "prompt_ids": np.array([0]),
                "output_ids": np.array([99]),
            },
            "not in the vocabulary",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_its_failure_alone(
    native: NativeSampler, wrong: dict[str, Any], message: str
) -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 0.0, 0.0]).expand(3, 5)
    good = SampleRow(GREEDY, seed=0, choice=0, position=0, num_top=1)
    bad = replace(good, **wrong)
    first, failed, last = native.sample(logits, [good, bad, good])
    assert failed.token_id == -1 and failed.failure is not None and message in failed.failure
    assert first == last and first.token_id == 1 and len(first.top) == 1


# -- log-probabilities --------------------------------------------------------------------


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    st.integers(0, 6), st.integers(1, 300), st.integers(0, 400), st.booleans(), st.integers(0, 99)
)
@settings(max_examples=80, deadline=None)
def test_logprobs_are_those_of_torch(
    instruction_set: str, num_rows: int, size: int, num_top: int, has_ties: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(num_rows, size)) * 4
    values = np.round(values) if has_ties else values
    values[rng.random(values.shape) < 0.1] = -math.inf
    values[:, 0] = 1.0
    logits = torch.as_tensor(values.astype(np.float32))
    targets = [int(target) for target in rng.integers(0, size, num_rows)]
    found = sampler(instruction_set, 2).logprobs_of(logits, targets, num_top)
    for entry, expected in zip(found, logprobs_of(logits, targets, num_top), strict=True):
        assert entry.token_id == expected.token_id
        assert_close(entry.logprob, expected.logprob)
        assert_same_top(entry.top, expected.top)


@pytest.mark.parametrize("kind", ["peaked", "flat", "equal", "deep"])
def test_the_probabilities_of_a_large_vocabulary(native: NativeSampler, kind: str) -> None:
    values = vocabulary_logits(kind, seed=3)
    (found,) = native.logprobs_of(torch.as_tensor(values)[None], [7], 20)
    logprobs = values.astype(np.float64) - np.logaddexp.reduce(values.astype(np.float64))
    best = sorted(range(len(values)), key=lambda i: (-logprobs[i], i))[:20]
    assert found.logprob == pytest.approx(logprobs[7], rel=1e-12)
    assert [token_id for token_id, _ in found.top] == best
    assert [value for _, value in found.top] == pytest.approx(logprobs[best], rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_have_no_probabilities(
    native: NativeSampler, bad: float
) -> None:
    logits = torch.zeros(3, 100)
    logits[1, 99] = bad
    first, broken, last = native.logprobs_of(logits, [0, 1, 0], 2)
    assert broken.logprob is not None and math.isnan(broken.logprob) and broken.top == ()
    assert first == last and first.logprob == pytest.approx(-math.log(100))


def test_records_have_the_size_of_their_structs() -> None:
    assert (ROW.size, RESULT.size, TOP.size) == (152, 16, 16)
