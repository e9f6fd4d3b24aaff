"""What answers tell of grammars and verdicts, on both APIs, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_serving import Serving, serving

SCHEMA = {
    "type": "array",
    "items": {"type": "string", "maxLength": 3},
    "minItems": 2,
    "maxItems": 2,
    "uniqueItems": True,
}
ENFORCED = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "seed": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


def generate(server: Serving, **sampling: Any) -> Any:
    params = {"max_new_tokens": 60, "sampling_seed": 1, **sampling}
    return server.ok("/generate", {"text": "a b", "sampling_params": params})["meta_info"]


def shape(schema: object, **fields: object) -> dict[str, object]:
    named = {"name": "it", "schema": schema, "strict": True, **fields}
    return {"type": "json_schema", "json_schema": named}


def events(server: Serving, path: str, body: object) -> list[Any]:
    lines = server.post(path, body).text.split("\n\n")
    found = [line.removeprefix("data: ") for line in lines if line]
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def test_a_native_answer_has_the_report(server: Serving) -> None:
    report = generate(server, json_schema=ENFORCED)["grammar"]
    assert report.pop("engine") in ("xgrammar", "llguidance")
    assert report == {"notes": [], "valid": True, "trouble": ""}
    report = generate(server, json_schema={"type": "integer"})["grammar"]
    assert report["notes"] == ["numbers have one spelling, and a bounded number of digits"]


def test_without_a_constraint_there_is_none(server: Serving) -> None:
    assert "grammar" not in generate(server)
    report = generate(server, regex="[ab]{3}")["grammar"]
    assert (report["valid"], report["trouble"]) == (None, "")


def test_what_can_t_be_enforced_is_refused_or_validated(server: Serving) -> None:
    body = {"text": "a", "sampling_params": {"json_schema": SCHEMA, "max_new_tokens": 60}}
    refused = server.post("/generate", body)
    assert refused.status_code == 400
    assert "at #: 'uniqueItems'" in refused.json()["error"]["message"]
    quotes = {str(i): 100.0 for i in server.service.client.tokenizer.encode('"')}
    report = generate(server, json_schema=SCHEMA, unenforced="validate", logit_bias=quotes)[
        "grammar"
    ]
    assert report["valid"] is False and report["trouble"] == "uniqueItems true"
    assert report["notes"][0] == "#: uniqueItems is not enforced"


def test_open_objects(server: Serving) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    closed = "objects have no keys but those that the schema names"
    assert closed in generate(server, json_schema=schema)["grammar"]["notes"]
    report = generate(server, json_schema=schema, open_objects=True)["grammar"]
    assert closed not in report["notes"] and report["valid"]


@pytest.mark.parametrize("deltas", [True, False])
def test_the_last_event_of_a_native_stream_has_it(server: Serving, deltas: bool) -> None:
    body = {
        "text": "a",
        "sampling_params": {"json_schema": ENFORCED, "max_new_tokens": 30},
        "stream": True,
        "incremental_streaming_output": deltas,
    }
    *others, last = events(server, "/generate", body)
    assert last["meta_info"]["grammar"]["valid"] is True
    assert not any("grammar" in event["meta_info"] for event in others)


def test_openai_choices_have_it(server: Serving) -> None:
    body = {**CHAT, "response_format": shape(ENFORCED)}
    [choice] = server.ok("/v1/chat/completions", body)["choices"]
    assert choice["grammar"]["valid"] is True
    *others, last = events(server, "/v1/chat/completions", {**body, "stream": True})
    assert last["choices"][0]["grammar"] == choice["grammar"]
    assert not any("grammar" in event["choices"][0] for event in others)
    [plain] = server.ok("/v1/chat/completions", CHAT)["choices"]
    assert "grammar" not in plain
    text = {"prompt": "a", "max_tokens": 30, "json_schema": ENFORCED}
    [choice] = server.ok("/v1/completions", text)["choices"]
    assert choice["grammar"]["valid"] is True


def test_openai_formats_carry_the_extensions(server: Serving) -> None:
    refused = server.post("/v1/chat/completions", {**CHAT, "response_format": shape(SCHEMA)})
    assert refused.status_code == 400 and "uniqueItems" in refused.json()["error"]["message"]
    asked = shape(SCHEMA, unenforced="validate", open_objects=True)
    [choice] = server.ok("/v1/chat/completions", {**CHAT, "response_format": asked})["choices"]
    assert choice["grammar"]["notes"][0] == "#: uniqueItems is not enforced"
    valid = len(set(json.loads(choice["message"]["content"]))) == 2
    assert choice["grammar"]["valid"] is valid


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"unenforced": "maybe", "json_schema": {}}, "sampling_params.unenforced"),
        ({"unenforced": "validate"}, "sampling_params.unenforced"),
        ({"open_objects": True, "regex": "a"}, "sampling_params.open_objects"),
        ({"open_objects": 1, "json_schema": {}}, "sampling_params.open_objects"),
        ({"unenforced": "validate", "json_schema": {"type": 5}}, "sampling_params.json_schema"),
        ({"unenforced": "validate", "json_schema": {"not": {}}}, "sampling_params.json_schema"),
    ],
)
def test_bad_input(server: Serving, fields: dict[str, Any], param: str) -> None:
    refused = server.post("/generate", {"text": "a", "sampling_params": fields})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert "grammar" in generate(server, json_schema=ENFORCED)


def test_it_is_counted(server: Serving) -> None:
    def counted() -> dict[str, float]:
        lines = server.get("/metrics").text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("espalier_structured")]
        return {name: float(value) for name, value in pairs}

    before = counted()
    generate(server, json_schema=ENFORCED)
    valid = 'espalier_structured_outputs_total{verdict="valid"}'
    assert counted() == {**before, valid: before[valid] + 1}
    assert before["espalier_structured_violation_total"] == 0
