"""The official OpenAI client against real processes with the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.servers import launcher

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b/c", "naïve", "北京"]}, "maxItems": 3},
        "email": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.com$"},
    },
    "required": ["name", "age", "tags", "email"],
    "additionalProperties": False,
}
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name three rivers in Europe."},
]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with launcher(api_key="secret", context_len=512) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_a_wrong_key_and_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


@pytest.mark.parametrize("model", ["smollm2", "default"])
def test_chat_streams_what_it_answers_whole(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=40
    )
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content != ""
    assert len(chunks) > 10
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [f for f in finishes if f] == [whole.choices[0].finish_reason]
    usage, streamed = whole.usage, chunks[-1].usage
    assert usage and streamed and usage.total_tokens == streamed.total_tokens
    assert streamed.prompt_tokens_details
    assert streamed.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


@pytest.mark.parametrize("seed", range(6))
def test_every_output_of_a_json_schema_validates(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": f"Describe person number {seed} as JSON."}],
        temperature=1.0,
        seed=seed,
        n=2,
        max_tokens=200,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
        },
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)


def test_completions_stream_what_they_answer_whole(client: openai.OpenAI) -> None:
    prompts = ["The capital of France is", "1, 2, 3, 4,"]
    whole = client.completions.create(
        model="smollm2", prompt=prompts, temperature=0, max_tokens=12, stop=[" 9", "\n\n"]
    )
    texts = ["", ""]
    stream = client.completions.create(
        model="smollm2",
        prompt=prompts,
        temperature=0,
        max_tokens=12,
        stop=[" 9", "\n\n"],
        stream=True,
    )
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert "Paris" in texts[0]


def test_an_output_that_fills_the_context_ends_with_length(client: openai.OpenAI) -> None:
    """Without max_tokens a chat may use all that is left; asking for more is refused."""
    words = "river " * 470
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": words}],
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    usage = answer.usage
    assert usage and usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": words}], max_tokens=100
        )


def test_leaving_a_stream_is_fine(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert client.models.list().data
