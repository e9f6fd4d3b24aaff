"""Bad input is a 4xx that names the field, and the server goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.http.namespaces import hints_of
from tests.http_serving import MAX_OPEN, Serving, serving
from tests.inprocess import CONTEXT_LEN

DEEP = b"[" * 100_000 + b"]" * 100_000
IDS = {"input_ids": [1, 2, 3]}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(max_body_bytes=12 << 20) as served:
        yield served


@pytest.fixture(autouse=True)
def goes_on(server: Serving) -> Iterator[None]:
    yield
    assert server.runtime.client.num_open == 0
    answer = server.ok("/generate", {**IDS, "sampling_params": {"max_new_tokens": 1}})
    assert answer["meta_info"]["completion_tokens"] == 1


def refused(server: Serving, path: str, body: object, status: int, param: str | None) -> str:
    """The message of a refusal with this status and field."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = server.request("POST", path, content=content)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["code"] in (status, "model_not_found")
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    return error["message"]


def sampling(**fields: Any) -> dict[str, Any]:
    return {**IDS, "sampling_params": fields}


# Bodies that are no JSON object at all.
BODIES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"  \n", None),
    (b"{", None),
    (b'{"text": "a"} trailing', None),
    (b"[1, 2]", None),
    (b"null", None),
    (b'"text"', None),
    (b'{"text": "\xff"}', None),
    (b"\xff\xfe{\x00}\x00", None),
    (b'{"\xff": 1}', None),
    (b'{"text": "\\ud800"}', None),
    (b'{"text": "a\x00b"}', None),
    (DEEP, None),
    (b'{"input_ids": ' + DEEP + b"}", "input_ids[0][0]"),
    (b'{"image_data": ' + DEEP + b"}", None),
    (b'{"sampling_params": {"json_schema": ' + DEEP + b"}, " + b'"input_ids": [1]}', None),
    (b'{"zzz": ' + DEEP + b"}", "zzz"),
    (b'{"sampling_params": {"temperature": NaN}}', "sampling_params.temperature"),
    (b'{"sampling_params": {"top_p": -Infinity}}', "sampling_params.top_p"),
    (b'{"sampling_params": {"temperature": 1e400}}', "sampling_params.temperature"),
    (b'{"sampling_params": {"logit_bias": {"5": NaN}}}', "sampling_params.logit_bias.5"),
    (b'{"input_ids": [1, 1e400]}', "input_ids[1]"),
    (b'{"input_ids": [1, NaN]}', "input_ids[1]"),
    (b'{"input_ids": [1, ' + b"9" * 5000 + b"]}", "input_ids[1]"),
]


@pytest.mark.parametrize(("body", "param"), BODIES, ids=lambda v: repr(v)[:40])
def test_bodies(server: Serving, body: bytes, param: str | None) -> None:
    refused(server, "/generate", body, 400, param)


PROMPTS: list[tuple[object, str]] = [
    ({}, "text"),
    ({"text": None, "input_ids": None}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"text": ""}, "text"),
    ({"text": 5}, "text"),
    ({"text": ["a", 5]}, "text[1]"),
    ({"text": ["a", ""]}, "text[1]"),
    ({"text": []}, "text"),
    ({"text": ["a"] * (MAX_OPEN + 1)}, "text"),
    ({"text": "word " * (2 * CONTEXT_LEN)}, "text"),
    ({"text": "x" * 10_000_000}, "text"),
    ({"text": ["a", "x" * 1_000_000]}, "text[1]"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [[]]}, "input_ids[0]"),
    ({"input_ids": [[1], []]}, "input_ids[1]"),
    ({"input_ids": 5}, "input_ids"),
    ({"input_ids": "1 2 3"}, "input_ids"),
    ({"input_ids": [1, [2]]}, "input_ids"),
    ({"input_ids": [[[1]]]}, "input_ids[0][0]"),
    ({"input_ids": [1, True]}, "input_ids[1]"),
    ({"input_ids": [1.0]}, "input_ids[0]"),
    ({"input_ids": [1.5]}, "input_ids[0]"),
    ({"input_ids": ["1"]}, "input_ids[0]"),
    ({"input_ids": [None]}, "input_ids[0]"),
    ({"input_ids": [1, -1]}, "input_ids[1]"),
    ({"input_ids": [1, 49_152]}, "input_ids[1]"),
    ({"input_ids": [1, 2**31]}, "input_ids[1]"),
    ({"input_ids": [1, 2**63]}, "input_ids[1]"),
    ({"input_ids": [1, 2**64]}, "input_ids[1]"),
    ({"input_ids": [[1], [2, 3, 4, 2**63]]}, "input_ids[1][3]"),
    ({"input_ids": [[1], [2, False]]}, "input_ids[1][1]"),
    ({"input_ids": [1] * (CONTEXT_LEN + 1)}, "input_ids"),
    ({"input_ids": [[1], [1] * (CONTEXT_LEN + 1)]}, "input_ids[1]"),
    ({"input_ids": [1] * 1_000_000}, "input_ids"),
]


@pytest.mark.parametrize(("body", "param"), PROMPTS, ids=lambda v: repr(v)[:60])
def test_prompts(server: Serving, body: object, param: str) -> None:
    refused(server, "/generate", body, 400, param)


SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"max_new_tokens": CONTEXT_LEN - 2}, "max_new_tokens"),
    ({"max_new_tokens": 2**40}, "max_new_tokens"),
    ({"max_new_tokens": 2**64}, "max_new_tokens"),
    ({"max_new_tokens": 1.5}, "max_new_tokens"),
    ({"max_new_tokens": "5"}, "max_new_tokens"),
    ({"max_new_tokens": True}, "max_new_tokens"),
    ({"min_new_tokens": -1}, "min_new_tokens"),
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 10**9}, "n"),
    ({"n": MAX_OPEN + 1}, "n"),
    ({"sampling_seed": 2**64}, "sampling_seed"),
    ({"sampling_seed": "x"}, "sampling_seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": [2**64]}, "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [5] * 100_000}, "stop_token_ids"),
    ({"regex": r"a[\ud800-\udfff]"}, "regex"),
    ({"ebnf": 'root ::= "a" x\nx ::= x'}, "ebnf"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"49152": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"regex": "("}, "regex"),
    ({"regex": "a" * 9000}, "regex"),
    ({"regex": 5}, "regex"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
    ({"regex": "a", "json_schema": "{}"}, "regex"),
    ({"json_schema": "{"}, "json_schema"),
    ({"json_schema": 5}, "json_schema"),
    ({"json_schema": [1]}, "json_schema"),
    ({"json_schema": {"type": "nothing"}}, "json_schema"),
    ({"json_schema": '{"a": NaN}'}, "json_schema"),
    ({"json_schema": "[" * 100_000}, "json_schema"),
    ({"ebnf": "root ::= ("}, "ebnf"),
    ({"choices": []}, "choices"),
    ({"choices": "ab"}, "choices"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"stop_regex": "a*"}, "stop_regex"),
    ({"structural_tag": "x"}, "structural_tag"),
    ({"beam_width": 4}, "beam_width"),
    ({"best_of": 2}, "best_of"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"no_stop_trim": "yes"}, "no_stop_trim"),
]


@pytest.mark.parametrize(("fields", "name"), SAMPLING, ids=lambda v: repr(v)[:60])
def test_sampling_parameters(server: Serving, fields: dict[str, Any], name: str) -> None:
    refused(server, "/generate", sampling(**fields), 400, f"sampling_params.{name}")


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"sampling_params": 5}, "sampling_params"),
    ({"sampling_params": "x"}, "sampling_params"),
    ({"sampling_params": [{}]}, "sampling_params"),
    ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "sampling_params"),
    (
        {"input_ids": [[1], [2]], "sampling_params": [{}, {"top_p": 7}]},
        "sampling_params[1].top_p",
    ),
    (
        {"input_ids": [[1], [2]], "sampling_params": [{}, {"regex": "("}]},
        "sampling_params[1].regex",
    ),
    (
        {"input_ids": [[1], [2], [1] * CONTEXT_LEN], "sampling_params": {"regex": "a"}},
        "sampling_params.max_new_tokens",
    ),
    (
        {"input_ids": [[1], [2]], "sampling_params": [{}, {"zzz": 7}]},
        "sampling_params[1].zzz",
    ),
    ({"return_logprob": "yes"}, "return_logprob"),
    ({"return_logprob": [True]}, "return_logprob"),
    ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
    ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len"),
    ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
    ({"return_logprob": True, "top_logprobs_num": 1.5}, "top_logprobs_num"),
    ({"rid": 5}, "rid"),
    ({"rid": ["a"]}, "rid"),
    ({"input_ids": [[1], [2]], "rid": "a"}, "rid"),
    ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid"),
    ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "rid"),
    ({"stream": "yes"}, "stream"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"extra_key": ["a"]}, "extra_key"),
    ({"max_new_tokens": 5}, "max_new_tokens"),
    ({"image_data": "x"}, "image_data"),
    ({"lora_path": "x"}, "lora_path"),
    ({"custom_logit_processor": "x"}, "custom_logit_processor"),
    ({"session_params": {"id": "x"}}, "session_params"),
    ({"return_hidden_states": True}, "return_hidden_states"),
    ({"input_embeds": [[0.5]]}, "input_embeds"),
    ({"priority": 2**31}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"stages_left": 0}, "stages_left"),
    ({"tenant": 5}, "tenant"),
    ({"lease": -1}, "lease"),
    ({"lease": 86_401}, "lease"),
    ({"lease": "long"}, "lease"),
]


@pytest.mark.parametrize(("fields", "param"), OTHERS, ids=lambda v: repr(v)[:60])
def test_other_fields(server: Serving, fields: dict[str, Any], param: str) -> None:
    refused(server, "/generate", {**IDS, **fields}, 400, param)


@pytest.mark.parametrize("lease", [math.nan, math.inf, -math.inf, -0.5, 86_400.5])
def test_a_lease_is_a_finite_time_of_a_day_at_most(lease: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        hints_of(None, None, None, lease)
    assert caught.value.param == "lease"
    assert hints_of(None, None, None, 86_400).lease_s == 86_400


OTHER_ROUTES: list[tuple[str, object, int, str | None]] = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "text": "b"}, 400, "text"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
    ("/tokenize", {"prompt": "x" * 10_000_000}, 400, "prompt"),
    ("/tokenize", {"prompt": ["a", "x" * 1_000_000]}, 400, "prompt[1]"),
    ("/tokenize", {"prompt": "a", "zzz": 1}, 400, "zzz"),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404, None),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"messages": [{"role": 5, "content": "a"}]}, 400, "messages"),
    ("/tokenize", {"messages": [{"content": "a"}]}, 400, "messages"),
    ("/tokenize", {"messages": [{"role": "user", "content": "x" * 9_000_000}]}, 400, "messages"),
    ("/tokenize", {"pieces": [{"text": "a", "control": 1}]}, 400, "pieces[0].control"),
    ("/tokenize", {"pieces": [{"control": True}]}, 400, "pieces[0].text"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": 5}, 400, "tokens"),
    ("/detokenize", {"tokens": [1, True]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [49_152]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [[1], [2**63]]}, 400, "tokens[1][0]"),
    ("/detokenize", {"tokens": [[1], 2]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [1, [2]]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [1] * (CONTEXT_LEN + 1)}, 400, "tokens"),
    ("/detokenize", {"tokens": [[1]] * (MAX_OPEN + 1)}, 400, "tokens"),
    ("/detokenize", {"tokens": [[1], [1] * (CONTEXT_LEN + 1)]}, 400, "tokens[1]"),
    ("/tokenize", {"messages": [{"role": "user"}] * (CONTEXT_LEN + 1)}, 400, "messages"),
    ("/role_markers", {"roles": ["x" * 1_000_000]}, 400, "roles"),
    ("/role_markers", {"roles": []}, 400, "roles"),
    ("/role_markers", {"roles": [""]}, 400, "roles"),
    ("/role_markers", {"roles": ["user"] * (CONTEXT_LEN + 1)}, 400, "roles"),
    ("/role_markers", {"roles": "user"}, 400, "roles"),
    ("/abort_request", {}, 400, "rid"),
    ("/abort_request", {"rid": 5}, 400, "rid"),
    ("/abort_request", {"rid": "a", "all": True}, 400, "all"),
    ("/nowhere", {}, 404, None),
    ("/health", {}, 405, None),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"), OTHER_ROUTES, ids=lambda v: repr(v)[:40]
)
def test_other_routes(
    server: Serving, path: str, body: object, status: int, param: str | None
) -> None:
    refused(server, path, body, status, param)


@pytest.mark.parametrize("headers", [{}, {"content-length": "5"}])
def test_too_long_bodies(server: Serving, headers: dict[str, str]) -> None:
    response = server.request("POST", "/generate", content=b" " * (13 << 20), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == 413


def test_a_name_in_use_is_refused(server: Serving) -> None:
    message = refused(server, "/generate", {"input_ids": [[1], [2]], "rid": ["a", "a"]}, 400, "rid")
    assert message.startswith("Duplicate request ID")


def test_a_bad_prompt_of_a_batch_refuses_all_of_it(server: Serving) -> None:
    before = server.service.client.num_open
    refused(server, "/generate", {"input_ids": [[1], [2, 2**31]]}, 400, "input_ids[1][1]")
    assert server.service.client.num_open == before


def test_bad_input_of_a_stream_is_no_stream(server: Serving) -> None:
    refused(server, "/generate", {**sampling(n=0), "stream": True}, 400, "sampling_params.n")


def test_messages_use_the_callers_names(server: Serving) -> None:
    message = refused(
        server,
        "/generate",
        sampling(sampling_seed=2**64),
        400,
        "sampling_params.sampling_seed",
    )
    assert message.startswith("sampling_seed must be an integer")


def test_an_error_of_ours_tells_nothing_of_the_inside(server: Serving) -> None:
    async def broken(request: Request) -> Response:
        raise RuntimeError("secret")

    server.app.add_route("/broken", broken, methods=["POST"])
    response = server.post("/broken", {})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal server error"
    assert "secret" not in response.text
