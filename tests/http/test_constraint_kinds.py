"""Every kind of constraint over HTTP: what is asked holds, and hostile input is a 400."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_serving import Serving, events_of, serving

NESTED = 'start: "(" start ")" | /[0-9]{1,3}/'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": {"enum": [7, "x"]}},
        "end": "</n>",
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


def generated(server: Serving, max_new_tokens: int = 60, **fields: Any) -> Any:
    sampling = {"max_new_tokens": max_new_tokens, "sampling_seed": 1, **fields}
    return server.ok("/generate", {"input_ids": [1, 2, 3], "sampling_params": sampling})


def chat(server: Serving, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": 1}
    [choice] = server.ok("/v1/chat/completions", {**body, **fields})["choices"]
    return choice


OVERLAPPING = ["a", "ab", "abc", "bc", "c"]
MANY = [f"choice number {n}" for n in range(1000)]
LONG = ["x" * 200, "y" * 200 + "z"]
UNICODE = ["漢字", "漢", "😀👍🏽", 'say "no"\n', "\\"]


@pytest.mark.parametrize("choices", [OVERLAPPING, MANY, LONG, UNICODE])
def test_choices(server: Serving, choices: list[str]) -> None:
    for seed in range(3):
        answer = generated(server, 400, choices=choices, sampling_seed=seed)
        assert answer["text"] in choices
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(
    "pattern",
    ["[a-c]{2,4}", "^(?!ab)[ab]{2}$", r"\d{1,3}(\.\d{1,2})?", "(yes|no)", "漢{1,3}", "x."],
)
def test_regexes(server: Serving, pattern: str) -> None:
    answer = generated(server, regex=pattern)
    assert re.fullmatch(pattern, answer["text"]) and "\n" not in answer["text"]


def test_lark_in_both_apis(server: Serving) -> None:
    answer = generated(server, 400, lark=NESTED, logit_bias={7: -100.0})
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        assert re.fullmatch(r"(\(*)[0-9]{1,3}(\)*)", answer["text"])
    assert chat(server, lark='start: "yes" | "no"')["message"]["content"] in ("yes", "no")


def test_structural_tags_in_both_apis(server: Serving) -> None:
    for structure in (TAG, json.dumps(TAG)):
        assert generated(server, structural_tag=structure)["text"] in ("<n>7</n>", '<n>"x"</n>')
    assert chat(server, response_format=TAG)["message"]["content"] in ("<n>7</n>", '<n>"x"</n>')


def test_response_formats(server: Serving) -> None:
    any_object = chat(server, response_format={"type": "json_object"})
    assert isinstance(json.loads(any_object["message"]["content"]), dict)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"name": "n", "strict": True, "schema": schema}
    strict = chat(server, response_format={"type": "json_schema", "json_schema": named})
    [(key, value)] = json.loads(strict["message"]["content"]).items()
    assert key == "a" and isinstance(value, int)
    plain = chat(server, response_format={"type": "text"}, max_tokens=4)
    assert plain["finish_reason"] == "length" and "incomplete" not in plain


INCOMPLETE = [
    {"lark": 'start: "abcdefgh"{9}'},
    {"ebnf": 'root ::= "abcdefgh"{9}'},
    {"structural_tag": {**TAG, "format": {"type": "const_string", "value": "abcdefgh" * 9}}},
]


@pytest.mark.parametrize("constraint", INCOMPLETE, ids=["lark", "ebnf", "structural_tag"])
def test_what_the_caller_wrote_may_end_incomplete_and_says_so(
    server: Serving, constraint: dict[str, Any]
) -> None:
    answer = generated(server, 3, **constraint)
    expected = {"type": "length", "length": 3, "incomplete": True}
    assert answer["meta_info"]["finish_reason"] == expected
    nothing = generated(server, 0, **constraint)
    assert nothing["meta_info"]["finish_reason"] == {**expected, "length": 0}


def test_a_text_that_is_whole_at_its_length_is_not_incomplete(server: Serving) -> None:
    answer = generated(server, 2, lark="start: /(a|b){1,90}/")
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_openai_says_incomplete_too_also_in_streams(server: Serving) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "ebnf": 'root ::= "abcdefghijklmnop"',
    }
    [choice] = server.ok("/v1/chat/completions", body)["choices"]
    assert (choice["finish_reason"], choice["incomplete"]) == ("length", True)
    stream = server.post("/v1/chat/completions", {**body, "stream": True})
    last = events_of(stream.text)[-1]["choices"][0]
    assert (last["finish_reason"], last["incomplete"]) == ("length", True)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"regex": "("}, "regex"),
    ({"regex": "(" * 4000 + ")" * 4000}, "regex"),
    ({"regex": "(?:" * 2000 + "a" + ")*" * 2000}, "regex"),
    ({"regex": r"(a)\1"}, "regex"),
    ({"regex": "a" * 9000}, "regex"),
    ({"regex": "a{1000}{1000}{1000}"}, "regex"),
    ({"regex": "a{2000000000}"}, "regex"),
    ({"regex": "[^\\s\\S]"}, "regex"),
    ({"lark": "start: x\nx: x"}, "lark"),
    ({"lark": "start: ("}, "lark"),
    ({"lark": "(" * 30_000}, "lark"),
    ({"lark": "start: /" + "(" * 3000 + "a" + ")*" * 3000 + "/"}, "lark"),
    ({"lark": ""}, "lark"),
    ({"lark": "a" * 70_000}, "lark"),
    ({"lark": 5}, "lark"),
    ({"structural_tag": {}}, "structural_tag"),
    ({"structural_tag": "nonsense"}, "structural_tag"),
    ({"structural_tag": 5}, "structural_tag"),
    ({"structural_tag": "[" * 100_000}, "structural_tag"),
    ({"structural_tag": {**TAG, "format": {"type": "token", "token": 2}}}, "structural_tag"),
    ({"structural_tag": {**TAG, "format": {"type": "regex", "pattern": "["}}}, "structural_tag"),
    ({"choices": []}, "choices"),
    ({"choices": ["a\0b"]}, "choices"),
    ({"choices": ["a"] * 1025}, "choices"),
    ({"lark": NESTED, "regex": "a"}, "lark"),
    ({"lark": NESTED, "structural_tag": TAG}, "structural_tag"),
]


@pytest.mark.parametrize(("fields", "param"), HOSTILE)
def test_hostile_constraints_are_refused_and_the_server_goes_on(
    server: Serving, fields: dict[str, Any], param: str
) -> None:
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 60, **fields}}
    refused = server.post("/generate", body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == f"sampling_params.{param}"
    assert generated(server, regex="ok")["text"] == "ok"


@pytest.mark.parametrize(
    "shape",
    [
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": {"type": "nope"}},
        {"type": "structural_tag", "format": 5},
    ],
)
def test_bad_structural_tags_of_openai(server: Serving, shape: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": shape}
    refused = server.post("/v1/chat/completions", {**body, "max_tokens": 9})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_stop_pattern_cuts_the_text_where_it_matches(server: Serving, is_streamed: bool) -> None:
    def text_of(**fields: Any) -> tuple[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": 30, **fields}
        body = {"text": "Once", "sampling_params": sampling, "stream": is_streamed}
        if not is_streamed:
            answer = server.ok("/generate", body)
        else:
            events = events_of(server.post("/generate", body).text)
            assert all(events[-1]["text"].startswith(event["text"]) for event in events)
            answer = events[-1]
        return answer["text"], answer["meta_info"]["finish_reason"]

    whole, _ = text_of()
    at = len(whole) // 2
    pattern = "".join(map(re.escape, whole[at : at + 2])) + ".?"
    first = min(found.start() for found in re.finditer(pattern, whole))
    text, finish = text_of(stop_regex=["(a+)+never", pattern])
    assert text == whole[:first] and finish == {"type": "stop", "matched": whole[first : first + 2]}
    kept, _ = text_of(stop_regex=pattern, no_stop_trim=True)
    assert kept == whole[: first + 2]


def test_a_stop_pattern_in_openais_api(server: Serving) -> None:
    body = {"prompt": "Once", "max_tokens": 30, "temperature": 0}
    [whole] = server.ok("/v1/completions", body)["choices"]
    [choice] = server.ok("/v1/completions", {**body, "stop_regex": r"[\s\S]{5}"})["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["matched_stop"] == whole["text"][:5]
