"""The native API's bodies and answers, against JSON written by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from espalier.frontend_lang.backends import native_answers as answers
from espalier.frontend_lang.backends import native_bodies as bodies
from espalier.runtime.errors import (
    EspalierError,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    Unavailable,
)
from espalier.runtime.messages import (
    Choice,
    Constraint,
    Ebnf,
    FinishReason,
    GrammarReport,
    JsonSchema,
    Lark,
    LogprobOptions,
    Regex,
    StructuralTag,
    TokenLogprob,
    Usage,
)
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk, RoleMarkers, TextPiece
from espalier.runtime.sampling.params import SamplingParams


def body_of(**fields: Any) -> dict[str, Any]:
    call = GenerateCall(input_ids=[1, 2], sampling=SamplingParams())
    body: dict[str, Any] = json.loads(bodies.generate_body(msgspec.structs.replace(call, **fields)))
    return body


def event(meta: dict[str, object] | None = None, **fields: object) -> bytes:
    return json.dumps({"text": "", "output_ids": [], **fields, "meta_info": meta or {}}).encode()


def reader(logprobs: LogprobOptions | None = None, n: int = 1) -> answers.ChunkReader:
    call = GenerateCall(input_ids=[1], sampling=SamplingParams(n=n), logprobs=logprobs)
    return answers.ChunkReader(call)


def test_the_body_of_a_plain_call() -> None:
    assert body_of() == {
        "input_ids": [1, 2],
        "sampling_params": {
            "max_new_tokens": 128,
            "min_new_tokens": 0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "logit_bias": {},
            "stop": [],
            "stop_regex": [],
            "stop_token_ids": [],
            "ignore_eos": False,
            "n": 1,
        },
        "return_logprob": False,
        "stream": True,
        "incremental_streaming_output": True,
    }


def test_every_sampling_parameter_is_sent() -> None:
    sampling = SamplingParams(
        max_new_tokens=9,
        min_new_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        frequency_penalty=-1.5,
        presence_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={7: -100.0},
        seed=-(2**63),
        stop=("\n", "\u2028é"),
        stop_regex=("a+", "é"),
        stop_token_ids=(3, -1),
        ignore_eos=True,
        n=4,
    )
    sent = body_of(sampling=sampling)["sampling_params"]
    assert sent.pop("sampling_seed") == -(2**63)
    assert sent.pop("logit_bias") == {"7": -100.0}
    for name in ("stop", "stop_regex", "stop_token_ids"):
        sent[name] = tuple(sent[name])
    expected = msgspec.structs.asdict(sampling)
    assert sent == {name: expected[name] for name in expected if name not in ("seed", "logit_bias")}


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (JsonSchema('{"type": "object"}'), {"json_schema": '{"type": "object"}'}),
        (
            JsonSchema("{}", open_objects=True, unenforced="validate"),
            {"json_schema": "{}", "open_objects": True, "unenforced": "validate"},
        ),
        (Regex("a+"), {"regex": "a+"}),
        (Ebnf('root ::= "a"'), {"ebnf": 'root ::= "a"'}),
        (Lark('start: "a"'), {"lark": 'start: "a"'}),
        (StructuralTag("{}"), {"structural_tag": "{}"}),
        (Choice(("a", "b")), {"choices": ["a", "b"]}),
    ],
)
def test_constraints_have_their_own_field(constraint: Constraint, field: dict[str, object]) -> None:
    plain = body_of()["sampling_params"]
    assert body_of(constraint=constraint)["sampling_params"] == {**plain, **field}


@pytest.mark.parametrize(
    ("options", "start", "top"),
    [
        (LogprobOptions(), -1, 0),
        (LogprobOptions(prompt_start=0, top=3), 0, 3),
        (LogprobOptions(output=False, prompt_start=5), 5, 0),
    ],
)
def test_log_probabilities_are_asked_for(options: LogprobOptions, start: int, top: int) -> None:
    body = body_of(logprobs=options)
    assert body["return_logprob"] is True
    assert (body["logprob_start_len"], body["top_logprobs_num"]) == (start, top)


def test_namespaces_stay_apart() -> None:
    names = [("a", "b"), ("a,b",), ("ab",), ('a","b',)]
    assert len({body_of(namespace=name)["extra_key"] for name in names}) == len(names)
    assert "extra_key" not in body_of()


def test_ids_of_other_integer_types_are_sent_as_integers() -> None:
    assert body_of(input_ids=list(np.array([3, 4])))["input_ids"] == [3, 4]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_ids": [1, 1.5]}, "input_ids"),
        ({"input_ids": [True]}, "input_ids"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(top_p=float("inf"))}, "top_p"),
        ({"sampling": SamplingParams(stop=("\ud800",))}, "stop"),
        ({"constraint": Regex("\ud800")}, None),
    ],
)
def test_what_json_can_t_say_is_refused_here(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        body_of(**fields)
    assert raised.value.param == param


def test_bodies_of_the_tokenizer_s_routes() -> None:
    pieces = [TextPiece("a"), TextPiece("<|b|>", control=True)]
    assert json.loads(bodies.tokenize_body(pieces)) == {
        "pieces": [{"text": "a", "control": False}, {"text": "<|b|>", "control": True}]
    }
    assert json.loads(bodies.role_markers_body(("user",))) == {"roles": ["user"]}
    with pytest.raises(InvalidRequest, match="surrogate"):
        bodies.tokenize_body([TextPiece("\udc00")])


def test_the_body_that_scores() -> None:
    assert json.loads(bodies.score_body([1, 2], [[3], [4, 5]])) == {
        "input_ids": [[1, 2, 3], [1, 2, 4, 5]],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": [2, 2],
        "stream": False,
    }
    with pytest.raises(InvalidRequest, match="nothing to score"):
        bodies.score_body([1], [])


def test_a_stream_of_one_choice() -> None:
    events = reader()
    assert events.take(event({"id": "r"}, text="Hé", output_ids=[5, 6])) == GenerateChunk(
        text="Hé", ids=(5, 6)
    )
    with pytest.raises(RequestFailed, match="without a finish reason"):
        events.check_ended()
    end: dict[str, object] = {
        "finish_reason": {"type": "stop", "matched": "\n"},
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 4,
        "num_retractions": 1,
        "kept_tokens": 2,
        "e2e_latency": 0.5,
        "grammar": {"engine": "xgrammar", "notes": ["a"], "valid": False, "trouble": "b"},
    }
    assert events.take(event(end, output_ids=[9])) == GenerateChunk(
        ids=(9,),
        finish=FinishReason(kind="stop", matched="\n"),
        usage=Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4, num_retractions=1),
        num_kept_tokens=2,
        grammar=GrammarReport(engine="xgrammar", notes=("a",), valid=False, trouble="b"),
    )
    events.check_ended()
    with pytest.raises(RequestFailed, match="choice 0, which is over"):
        events.take(event())


def test_choices_end_each_for_itself() -> None:
    events = reader(n=2)
    end: dict[str, object] = {"finish_reason": {"type": "length", "length": 1}}
    first = events.take(event(end, index=1, output_ids=[3]))
    assert (first.choice, first.finish) == (1, FinishReason(kind="length"))
    assert events.take(event(index=0, output_ids=[4])).choice == 0
    with pytest.raises(RequestFailed, match="without a finish reason"):
        events.check_ended()
    stop: dict[str, object] = {"finish_reason": {"type": "stop", "matched": 2}}
    assert events.take(event(stop, index=0)).finish == FinishReason(kind="stop", matched=2)
    events.check_ended()
    with pytest.raises(RequestFailed, match="choice 2"):
        events.take(event(index=2))


def test_log_probabilities_are_those_of_the_engine() -> None:
    meta: dict[str, object] = {
        "input_token_logprobs": [[None, 1, None], [-0.1, 2, "b"]],
        "input_top_logprobs": [None, [[-0.1, 2, None], [-3.5, 8, None]]],
        "output_token_logprobs": [[-1.0000001192092896, 5, None]],
        "output_top_logprobs": [[[-0.5, 6, None], [-1.0000001192092896, 5, None]]],
    }
    chunk = reader(LogprobOptions(prompt_start=0, top=2)).take(event(meta, output_ids=[5]))
    assert chunk.prompt_logprobs == (
        TokenLogprob(1, None),
        TokenLogprob(2, -0.1, ((2, -0.1), (8, -3.5))),
    )
    lowest = -1.0000001192092896
    assert chunk.logprobs == (TokenLogprob(5, lowest, ((6, -0.5), (5, lowest))),)


def test_log_probabilities_that_were_not_asked_for_are_left_out() -> None:
    meta: dict[str, object] = {
        "input_token_logprobs": [[-0.1, 2, None]],
        "output_token_logprobs": [[-1.0, 5, None]],
    }
    plain = reader(LogprobOptions()).take(event(meta))
    assert (plain.prompt_logprobs, plain.logprobs) == (None, (TokenLogprob(5, -1.0),))
    prompt = reader(LogprobOptions(output=False, prompt_start=1)).take(event(meta))
    assert (prompt.prompt_logprobs, prompt.logprobs) == ((TokenLogprob(2, -0.1),), None)
    nothing = reader(LogprobOptions()).take(event({"output_token_logprobs": []}))
    assert nothing.logprobs is None


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (event({"finish_reason": {"type": "abort", "message": "by an operator"}}), RequestAborted,
         "by an operator"),
        (b'{"error": {"message": "no grammar", "type": "t", "param": "sampling_params.regex",'
         b' "code": 400}, "index": 0}', InvalidRequest, "no grammar"),
        (b'{"error": {"message": "the step failed", "type": "server_error", "code": 500}}',
         RequestFailed, "the step failed"),
        (b'{"error": {"message": "a process died", "code": 503}}', RequestFailed, "died"),
        (event({"finish_reason": {"type": "tired"}}), RequestFailed, "tired"),
        (event({"output_token_logprobs": [[1, 2]]}), RequestFailed, "can't be read"),
        (event({"output_token_logprobs": [[-1.0, 5, None]], "output_top_logprobs": [[], []]}),
         RequestFailed, "2 tops for 1 tokens"),
        (b"not JSON", RequestFailed, "can't be read"),
    ],
)  # fmt: skip
def test_events_that_are_errors(data: bytes, kind: type[EspalierError], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        reader(LogprobOptions()).take(data)
    assert type(raised.value) is kind
    if isinstance(raised.value, InvalidRequest):
        assert raised.value.param == "regex"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message", "param"),
    [
        (400, b'{"error": {"message": "m", "param": "input_ids", "code": 400}}', InvalidRequest,
         "m", "input_ids"),
        (400, b'{"error": {"message": "m", "param": "sampling_params.sampling_seed"}}',
         InvalidRequest, "m", "seed"),
        (400, b'{"error": {"message": "m", "param": "top_logprobs_num"}}', InvalidRequest, "m",
         "top_logprobs"),
        (401, b'{"error": {"message": "the API key is wrong"}}', InvalidRequest, "key", None),
        (404, b"<html>\n", InvalidRequest, "http://x answered with status 404: <html>", None),
        (413, b"", InvalidRequest, "status 413", None),
        (503, b'{"error": {"message": "full"}}', Unavailable, "full", None),
        (502, b"\xff", Unavailable, "status 502", None),
        (500, b'{"error": {"message": "internal"}}', RequestFailed, "internal", None),
        (302, b"", RequestFailed, "status 302", None),
    ],
)  # fmt: skip
def test_statuses_are_errors(
    status: int, body: bytes, kind: type[EspalierError], message: str, param: str | None
) -> None:
    error = answers.error_of(status, body, "http://x")
    assert type(error) is kind and message in str(error)
    assert getattr(error, "param", None) == param


def test_scores_are_in_the_order_of_the_continuations() -> None:
    def result(entries: list[object], kind: str = "length") -> dict[str, object]:
        return {
            "text": "",
            "output_ids": [],
            "meta_info": {"finish_reason": {"type": kind}, "input_token_logprobs": entries},
        }

    data = json.dumps([result([[None, 3, None]]), result([[-1.5, 4, None], [-2.0, 5, None]])])
    assert answers.scores_of(data.encode(), 2) == [
        [TokenLogprob(3, None)],
        [TokenLogprob(4, -1.5), TokenLogprob(5, -2.0)],
    ]
    with pytest.raises(RequestFailed, match="2 of 3"):
        answers.scores_of(data.encode(), 3)
    with pytest.raises(RequestAborted):
        answers.scores_of(json.dumps([result([], "abort")]).encode(), 1)


def test_small_answers() -> None:
    assert answers.tokens_of(b'{"tokens": [1, 2], "count": 2}') == [1, 2]
    assert answers.role_markers_of(b'{"open": "<u>", "close": "\\n"}') == RoleMarkers("<u>", "\n")
    assert answers.num_flushed_of(b'{"success": true, "num_flushed_tokens": 12}') == 12
    assert answers.object_of(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(RequestFailed, match="can't be read"):
        answers.tokens_of(b"[]")
