"""Every bad body is refused with a status and the name of the field at fault."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.http_serving import MAX_OPEN, Serving, serving
from tests.inprocess import CONTEXT_LEN, smollm2_tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = "many words " * CONTEXT_LEN
OUTSIDE = smollm2_tokenizer().vocab_size
HUGE = "x" * (CONTEXT_LEN * smollm2_tokenizer().max_token_bytes + 1)
DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def schema(value: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": value}}


# What both routes refuse: changed fields, status, param.
COMMON: list[tuple[dict[str, object], int, str | None]] = [
    ({"model": "gpt-4"}, 404, None),
    ({"model": 3}, 400, "model"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"max_tokens": 1.5}, 400, "max_tokens"),
    ({"max_tokens": True}, 400, "max_tokens"),
    ({"max_tokens": "5"}, 400, "max_tokens"),
    ({"max_tokens": CONTEXT_LEN}, 400, "max_tokens"),
    ({"max_tokens": 2**63}, 400, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
    ({"min_tokens": -1}, 400, "min_tokens"),
    ({"temperature": -0.1}, 400, "temperature"),
    ({"temperature": 101}, 400, "temperature"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"top_p": 1.1}, 400, "top_p"),
    ({"top_k": 0}, 400, "top_k"),
    ({"min_p": 2}, 400, "min_p"),
    ({"n": 0}, 400, "n"),
    ({"n": -1}, 400, "n"),
    ({"n": MAX_OPEN + 1}, 400, "n"),
    ({"n": 10**30}, 400, "n"),
    ({"best_of": 2}, 400, "best_of"),
    ({"stop": 5}, 400, "stop"),
    ({"stop": ["a", 5]}, 400, "stop[1]"),
    ({"stop": ""}, 400, "stop"),
    ({"stop": ["x"] * 33}, 400, "stop"),
    ({"stop_token_ids": ["1"]}, 400, "stop_token_ids[0]"),
    ({"stop_regex": "(a"}, 400, "stop_regex"),
    ({"seed": 2**63}, 400, "seed"),
    ({"seed": 0.5}, 400, "seed"),
    ({"presence_penalty": 2.1}, 400, "presence_penalty"),
    ({"frequency_penalty": -2.1}, 400, "frequency_penalty"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty"),
    ({"logit_bias": {"hello": 1}}, 400, "logit_bias"),
    ({"logit_bias": {str(OUTSIDE): 1}}, 400, "logit_bias"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
    ({"logit_bias": [1]}, 400, "logit_bias"),
    ({"stream": 1}, 400, "stream"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage"),
    ({"stream": True, "max_tokens": -1}, 400, "max_tokens"),
    ({"skip_special_tokens": False}, 400, "skip_special_tokens"),
    ({"lora_path": "adapter"}, 400, "lora_path"),
    ({"temprature": 1}, 400, "temprature"),
    ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
    ({"response_format": {}}, 400, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "it"}}},
        400,
        "response_format.json_schema.schema",
    ),
    ({"response_format": schema({"not": {}})}, 400, "response_format"),
    ({"response_format": schema(5)}, 400, "response_format"),
    ({"response_format": schema(None)}, 400, "response_format"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, 400, "regex"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, 400, "ebnf"),
    ({"regex": "(a"}, 400, "regex"),
    ({"regex": "(?=a)b"}, 400, "regex"),
    ({"ebnf": "root ::= ("}, 400, "ebnf"),
    ({"ebnf": "root ::= (", "stream": True}, 400, "ebnf"),
    ({"json_schema": '{"type": '}, 400, "json_schema"),
    ({"json_schema": {"uniqueItems": True}}, 400, "json_schema"),
    ({"choices": []}, 400, "choices"),
    ({"choices": "yes"}, 400, "choices"),
    ({"rid": 5}, 400, "rid"),
    ({"lease": -1}, 400, "lease"),
    ({"lease": 86_401}, 400, "lease"),
]

ONLY_CHAT: list[tuple[dict[str, object], int, str | None]] = [
    ({"messages": []}, 400, "messages"),
    ({"messages": "Hello"}, 400, "messages"),
    ({"messages": None}, 400, "messages"),
    ({"messages": [{"content": "Hello"}]}, 400, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "robot", "content": "x"}]}, 400, "messages[1].role"),
    ({"messages": [{"role": 1, "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, 400, "messages[0].weight"),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                }
            ]
        },
        400,
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        400,
        "messages[0].tool_calls",
    ),
    ({"messages": [{"role": "user", "content": LONG}]}, 400, "messages"),
    ({"messages": [{"role": "user", "content": HUGE}]}, 400, "messages"),
    ({"messages": [{"role": "user", "content": ""}] * (CONTEXT_LEN + 1)}, 400, "messages"),
    ({"max_completion_tokens": CONTEXT_LEN}, 400, "max_completion_tokens"),
    ({"max_completion_tokens": -5}, 400, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, 400, "max_tokens"),
    ({"logprobs": 3}, 400, "logprobs"),
    ({"top_logprobs": 3}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, 400, "tools"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"functions": [{"name": "f"}]}, 400, "functions"),
    ({"modalities": ["text", "audio"]}, 400, "modalities"),
    ({"reasoning_effort": "high"}, 400, "reasoning_effort"),
    ({"prediction": {"type": "content", "content": "x"}}, 400, "prediction"),
    ({"continue_final_message": True}, 400, "continue_final_message"),
    ({"add_generation_prompt": False}, 400, "add_generation_prompt"),
    ({"prompt": "Hello"}, 400, "prompt"),
]

ONLY_TEXT: list[tuple[dict[str, object], int, str | None]] = [
    ({"prompt": None}, 400, "prompt"),
    ({"prompt": 5}, 400, "prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": [[]]}, 400, "prompt"),
    ({"prompt": ["a", 1]}, 400, "prompt"),
    ({"prompt": [[1], 1]}, 400, "prompt"),
    ({"prompt": [1.5]}, 400, "prompt[0]"),
    ({"prompt": [True]}, 400, "prompt[0]"),
    ({"prompt": [[1, "a"]]}, 400, "prompt[0][1]"),
    ({"prompt": [-1]}, 400, "prompt"),
    ({"prompt": [OUTSIDE]}, 400, "prompt"),
    ({"prompt": [2**63]}, 400, "prompt"),
    ({"prompt": [1] * (CONTEXT_LEN + 1)}, 400, "prompt"),
    ({"prompt": LONG}, 400, "prompt"),
    ({"prompt": HUGE}, 400, "prompt"),
    ({"prompt": ["a"] * (MAX_OPEN + 1)}, 400, "prompt"),
    ({"prompt": ["a"] * MAX_OPEN, "n": 2}, 400, "n"),
    ({"logprobs": True}, 400, "logprobs"),
    ({"logprobs": 21}, 400, "logprobs"),
    ({"logprobs": -1}, 400, "logprobs"),
    ({"echo": True}, 400, "echo"),
    ({"suffix": "the end"}, 400, "suffix"),
    ({"rid": ["a", "b"]}, 400, "rid"),
    ({"messages": HELLO}, 400, "messages"),
]

CASES = [
    *((CHAT, {"model": "default", "messages": HELLO} | c, s, p) for c, s, p in COMMON + ONLY_CHAT),
    *((TEXT, {"model": "default", "prompt": "Hello"} | c, s, p) for c, s, p in COMMON + ONLY_TEXT),
]


@pytest.fixture(scope="module")
def server() -> Generator[Serving]:
    with serving() as server:
        yield server


@pytest.mark.parametrize(("path", "body", "status", "param"), CASES)
def test_refused(
    server: Serving, path: str, body: dict[str, object], status: int, param: str | None
) -> None:
    response = server.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert error["message"]
    assert server.runtime.client.num_open == 0


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"model": "default", "prompt": "a"', None),
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "a", "logit_bias": {"1": Infinity}}', "logit_bias.1"),
        (b'{"prompt": "\xff"}', None),
        (b'{"prompt": "\\ud800"}', None),
        (b'{"prompt": "a", "json_schema": "\xff"}', "json_schema"),
        (b'{"prompt": "a", "json_schema": "\\ud800"}', None),
        (b'{"prompt": "a", "metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", None),
        (b'{"prompt": "a", "json_schema": ' + DEEP.encode() + b"}", None),
    ],
)
def test_refused_bytes(server: Serving, content: bytes, param: str | None) -> None:
    response = server.request("POST", TEXT, content=content)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error


def test_words_that_clients_look_for(server: Serving) -> None:
    def message(path: str, body: dict[str, object]) -> str:
        text: str = server.post(path, body).json()["error"]["message"]
        return text

    too_long = "is longer than the model's context length"
    assert too_long in message(TEXT, {"prompt": LONG})
    assert too_long in message(CHAT, {"messages": [{"role": "user", "content": HUGE}]})
    asked = message(CHAT, {"messages": HELLO, "max_completion_tokens": 10_000})
    assert "max_completion_tokens is too large" in asked
    assert "prompt[1] is 10000000" in message(TEXT, {"prompt": [1, 10_000_000]})
    assert "min_tokens (9)" in message(TEXT, {"prompt": "a", "max_tokens": 8, "min_tokens": 9})
    assert "response_format: " in message(
        CHAT, {"messages": HELLO, "response_format": schema({"not": {}})}
    )


def test_a_body_that_is_too_long(server: Serving) -> None:
    response = server.request("POST", TEXT, content=b" " * ((32 << 20) + 1))
    assert response.status_code == 413


def test_methods_and_paths(server: Serving) -> None:
    assert server.get(CHAT).status_code == 405
    assert server.get("/v1/engines").status_code == 404


def test_a_name_in_use(server: Serving) -> None:
    response = server.post(TEXT, {"prompt": ["a", "b"], "rid": ["same", "same"]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "rid")
    assert "Duplicate request ID" in error["message"]
