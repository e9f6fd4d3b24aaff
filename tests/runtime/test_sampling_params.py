"""What `SamplingParams.validate` accepts and refuses, field by field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.sampling.params import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_BYTES,
    MAX_STOP_IDS,
    MAX_STOPS,
    SamplingParams,
)

VOCAB_SIZE = 1000

GOOD: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 0},
    {"max_new_tokens": 2**31 - 1},
    {"min_new_tokens": 128, "max_new_tokens": 128},
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": 1e-300},
    {"temperature": 100},
    {"top_p": 1e-9},
    {"top_p": 1},
    {"top_k": -1},
    {"top_k": 1},
    {"top_k": 2**31 - 1},
    {"min_p": 0.0},
    {"min_p": 1.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 2},
    {"repetition_penalty": 1e-3},
    {"repetition_penalty": 2.0},
    {"logit_bias": {0: -100.0, VOCAB_SIZE - 1: 100}},
    {"logit_bias": dict.fromkeys(range(1000), 1.0)},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"stop": ("x" * MAX_STOP_BYTES,)},
    {"stop": ("a",) * MAX_STOPS},
    {"stop_token_ids": (1,) * MAX_STOP_IDS},
    {"stop_token_ids": (-5, 10**9)},
    {"n": MAX_CHOICES},
]

NOT_INTEGERS: list[Any] = [math.nan, math.inf, 1.0, True, False, "1", None, [1], 10**30, -(10**30)]
NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, True, False, "1", None, [1.0], 1j]

BAD: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name in ("max_new_tokens", "min_new_tokens", "top_k", "n")
        for value in NOT_INTEGERS
    ),
    *(("seed", value) for value in NOT_INTEGERS if value is not None),
    *(("stop_token_ids", (value,)) for value in NOT_INTEGERS),
    *(
        (name, value)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
        )
        for value in NOT_NUMBERS
    ),
    ("max_new_tokens", -1),
    ("max_new_tokens", 2**31),
    ("min_new_tokens", -1),
    ("min_new_tokens", 129),
    ("temperature", -1e-9),
    ("temperature", 100.5),
    ("top_p", 0.0),
    ("top_p", -0.1),
    ("top_p", 1.0000001),
    ("top_k", 0),
    ("top_k", -2),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("frequency_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 2.1),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {VOCAB_SIZE: 1.0}),
    ("logit_bias", {10**30: 1.0}),
    ("logit_bias", {True: 1.0}),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {5: math.inf}),
    ("logit_bias", {5: 1e30}),
    ("logit_bias", {5: -100.1}),
    ("logit_bias", {5: True}),
    ("logit_bias", {5: "1"}),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("stop", "abc"),
    ("stop", ("",)),
    ("stop", (1,)),
    ("stop", (None,)),
    ("stop", (b"x",)),
    ("stop", ("\ud800",)),
    ("stop", ("\ud800",)),
    ("stop", ("a",) * (MAX_STOPS + 1)),
    ("stop", ("x" * (MAX_STOP_BYTES + 1),)),
    ("stop", ("é" * (MAX_STOP_BYTES // 2) + "x",)),
    *(("temperature", value) for value in (10**400, -(10**400))),
    ("logit_bias", {1: 10**400}),
    ("logit_bias", [1]),
    ("stop_token_ids", 5),
    ("stop_token_ids", (1,) * (MAX_STOP_IDS + 1)),
    ("ignore_eos", 3),
    ("n", 0),
    ("n", MAX_CHOICES + 1),
]


@pytest.mark.parametrize("fields", GOOD, ids=lambda fields: str(fields)[:40])
def test_accepted(fields: dict[str, Any]) -> None:
    SamplingParams(**fields).validate(VOCAB_SIZE)


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: str(value)[:30])
def test_refused_naming_the_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value}).validate(VOCAB_SIZE)
    assert refused.value.param == field
    assert field.removesuffix("_token_ids") in str(refused.value)


def test_too_many_biases() -> None:
    bias = dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)
    with pytest.raises(InvalidRequest, match=str(MAX_LOGIT_BIAS)) as refused:
        SamplingParams(logit_bias=bias).validate(10**6)
    assert refused.value.param == "logit_bias"


def test_an_unknown_field_is_an_error() -> None:
    misspelt: dict[str, Any] = {"temprature": 1.0}
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**misspelt)


@given(st.floats(), st.floats(), st.floats(), st.integers(), st.integers())
def test_validation_ends_in_acceptance_or_a_named_refusal(
    temperature: float, top_p: float, penalty: float, top_k: int, seed: int
) -> None:
    params = SamplingParams(
        temperature=temperature, top_p=top_p, repetition_penalty=penalty, top_k=top_k, seed=seed
    )
    try:
        params.validate(VOCAB_SIZE)
    except InvalidRequest as error:
        assert error.param is not None and error.param in params.__struct_fields__
    else:
        assert 0 <= temperature <= 100 and 0 < top_p <= 1 and 0 < penalty <= 2 and top_k != 0
