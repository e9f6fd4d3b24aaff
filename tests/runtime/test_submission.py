"""From calls to requests: everything that can't be served is refused by name, cheaply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from espalier.runtime.errors import InvalidRequest, RequestFailed
from espalier.runtime.messages import (
    Constraint,
    FinishReason,
    LogprobOptions,
    Regex,
    TokenOutput,
    Usage,
)
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.submission import (
    Submission,
    expand,
    expand_each,
    scoring_requests,
    token_ids,
)

LIMITS = RequestLimits(context_len=10, pool_tokens=10, vocab_size=10)
USAGE = Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=0)


def call(**sampling: Any) -> GenerateCall:
    sampling = {"max_new_tokens": 2, **sampling}
    return GenerateCall(input_ids=[1], sampling=SamplingParams(**sampling))


@pytest.mark.parametrize(
    "sampling",
    [
        {"n": 0},
        {"n": -1},
        {"n": "2"},
        {"n": 2**31},
        {"stop_token_ids": ("a",)},
        {"stop_token_ids": None},
        {"stop": "abc"},
        {"temperature": 10**400},
    ],
    ids=str,
)
def test_bad_sampling(sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        expand(call(**sampling), LIMITS)
    assert caught.value.param in sampling


@pytest.mark.parametrize(
    "options",
    [{"top": None}, {"top": "3"}, {"top": 1.5}, {"prompt_start": "0"}, {"prompt_start": 0.5}],
    ids=str,
)
def test_bad_logprob_options(options: dict[str, Any]) -> None:
    bad = GenerateCall(
        input_ids=[1], sampling=SamplingParams(max_new_tokens=2), logprobs=LogprobOptions(**options)
    )
    with pytest.raises(InvalidRequest):
        expand(bad, LIMITS)


def test_choices_share_one_id_and_seed() -> None:
    requests = expand(call(n=3), LIMITS)
    assert [r.choice for r in requests] == [0, 1, 2]
    assert len({r.rid for r in requests}) == len({r.sampling.seed for r in requests}) == 1
    assert requests[0].sampling.seed is not None
    assert expand(call(n=3), LIMITS)[0].sampling.seed != requests[0].sampling.seed


def test_stop_ids_that_can_never_match_are_dropped() -> None:
    [request] = expand(call(stop_token_ids=(3, 119_690, -1)), LIMITS)
    assert request.sampling.stop_token_ids == (3,)


def test_numpy_integers_are_ids() -> None:
    ids: Any = list(np.arange(3))
    assert token_ids(ids).tolist() == [0, 1, 2]


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        scoring_requests([1], [], LIMITS)


def test_an_error_in_one_choice_is_raised_whoever_has_ended_before() -> None:
    submission = Submission(expand(call(n=2), LIMITS), lambda _: b"x")
    done = FinishReason(kind="stop")
    submission.take(
        TokenOutput(rid="r", choice=0, ids=(1,), finish=done, usage=USAGE, num_text_bytes=1)
    )
    with pytest.raises(RequestFailed, match="why"):
        submission.take(
            TokenOutput(rid="r", choice=0, finish=FinishReason(kind="error", message="why"))
        )
    assert submission.num_open == 1


def test_what_calls_share_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Constraint] = []
    monkeypatch.setattr("espalier.runtime.submission.check_constraint", checked.append)
    shared, own = Regex("a"), Regex("a")
    sampling = SamplingParams(max_new_tokens=2)
    calls = [
        GenerateCall(input_ids=[1], sampling=sampling, constraint=constraint)
        for constraint in (shared, shared, own)
    ]
    requests = [request for [request] in expand_each(calls, LIMITS)]
    assert len(checked) == 2 and checked[0] is shared and checked[1] is own
    assert len({request.rid for request in requests}) == 3
    assert len({request.sampling.seed for request in requests}) == 3


@pytest.mark.parametrize(
    ("prompt_len", "max_new_tokens", "param"),
    [
        (6, 0, None),
        (6, 1, None),
        (6, 2, "max_new_tokens"),
        (7, 0, "input_ids"),
        (8, 0, "input_ids"),
        (8, 1, "input_ids"),
        (9, 0, "input_ids"),
    ],
)
def test_what_is_too_long_is_named(prompt_len: int, max_new_tokens: int, param: str | None) -> None:
    limits = RequestLimits(context_len=8, pool_tokens=6, vocab_size=10)
    long = GenerateCall(
        input_ids=[1] * prompt_len, sampling=SamplingParams(max_new_tokens=max_new_tokens)
    )
    if param is None:
        assert len(expand(long, limits)) == 1
        return
    with pytest.raises(InvalidRequest) as refused:
        expand(long, limits)
    assert refused.value.param == param
