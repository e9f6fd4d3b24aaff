"""/v1/chat/completions and /v1/models: the openai client over loopback, and plain HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from espalier.runtime.http.app import create_app
from tests.http_serving import (
    DEADLINE_S,
    MODEL_NAME,
    Exchange,
    nothing_held,
    served_runtime,
    stats_when,
    stopped_scheduler,
)
from tests.inprocess import CONTEXT_LEN, smollm2_tokenizer
from tests.openai_app import OpenAIServing, openai_serving

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Tell me a story about an oak."}]
GREEDY: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_tokens": 24}
SEEDED: dict[str, Any] = {"messages": HELLO, "seed": 11, "max_tokens": 24}


@pytest.fixture(scope="module")
def server() -> Generator[OpenAIServing]:
    with openai_serving() as server:
        yield server


def whole(server: OpenAIServing, **body: Any) -> ChatCompletion:
    extra = body.pop("extra", None)
    create: Any = server.openai.chat.completions.create  # its overloads fit no dictionary
    answer: ChatCompletion = server.run(create(model="default", extra_body=extra, **body))
    return answer


def streamed(server: OpenAIServing, **body: Any) -> list[ChatCompletionChunk]:
    extra = body.pop("extra", None)

    async def collect() -> list[ChatCompletionChunk]:
        stream: Any = await server.openai.chat.completions.create(
            model="default", stream=True, extra_body=extra, **body
        )
        return [chunk async for chunk in stream]

    return server.run(collect())


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def finish_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str | None:
    choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
    assert [c.finish_reason for c in choices[:-1]] == [None] * (len(choices) - 1)
    return choices[-1].finish_reason


def test_a_whole_answer(server: OpenAIServing) -> None:
    body = server.post(PATH, {**GREEDY, "model": "default"}).json()
    text = body["choices"][0]["message"]["content"]
    prompt_len = len(smollm2_tokenizer().encode_chat(HELLO))
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert body["id"].startswith("chatcmpl-") and isinstance(body["created"], int)
    assert {**body, "id": None, "created": None} == {
        "id": None,
        "object": "chat.completion",
        "created": None,
        "model": MODEL_NAME,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "matched_stop": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_len,
            "completion_tokens": 24,
            "total_tokens": prompt_len + 24,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


@pytest.mark.parametrize("body", [GREEDY, SEEDED, {**SEEDED, "seed": -1, "max_tokens": 1}])
def test_a_stream_gives_the_whole_answer(server: OpenAIServing, body: dict[str, Any]) -> None:
    answer, chunks = whole(server, **body), streamed(server, **body)
    assert text_of(chunks) == answer.choices[0].message.content
    assert finish_of(chunks) == answer.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.model for chunk in chunks} == {MODEL_NAME}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_the_bytes_of_a_stream(server: OpenAIServing) -> None:
    response = server.post(PATH, {**GREEDY, "stream": True, "max_tokens": 3})
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
    ]
    assert "usage" not in first


def test_usage_at_the_end_of_a_stream(server: OpenAIServing) -> None:
    usage = whole(server, **GREEDY).usage
    *chunks, last = streamed(server, **GREEDY, stream_options={"include_usage": True})
    assert usage is not None and last.usage is not None
    assert last.choices == []
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    assert last.usage.completion_tokens == usage.completion_tokens == 24
    assert last.usage.prompt_tokens == usage.prompt_tokens
    raw = server.post(
        PATH, {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    ).text
    assert all('"usage":' in event for event in raw.split("\n\n")[:-2])


def test_usage_all_along_a_stream(server: OpenAIServing) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(server, **GREEDY, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 24


def test_n_choices(server: OpenAIServing) -> None:
    answer, chunks = whole(server, **SEEDED, n=3), streamed(server, **SEEDED, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [text_of(chunks, index) for index in range(3)] == texts
    assert [finish_of(chunks, index) for index in range(3)] == ["length"] * 3
    assert texts[0] == whole(server, **SEEDED).choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(smollm2_tokenizer().encode_chat(HELLO))
    assert answer.usage.completion_tokens == 3 * 24


def test_seeds(server: OpenAIServing) -> None:
    def text(seed: int) -> str | None:
        return whole(server, **{**SEEDED, "seed": seed}).choices[0].message.content

    assert text(1) == text(1) != text(2)


def test_cached_tokens(server: OpenAIServing) -> None:
    messages = [{"role": "user", "content": "A prompt that no other test has."}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 2, "n": 2}

    def cached(**extra: str) -> int:
        usage = server.post(PATH, {**body, **extra}).json()["usage"]
        number: int = usage["prompt_tokens_details"]["cached_tokens"]
        return number

    prompt_len = len(smollm2_tokenizer().encode_chat(messages))
    first = cached(cache_salt="mine")
    assert first == 0  # its second choice shares the prompt, which was not cached before
    assert cached(cache_salt="mine") == prompt_len - 1
    assert cached(cache_salt="yours") == 0
    assert cached(extra_key="mine") == 0


def test_logprobs(server: OpenAIServing) -> None:
    choice = whole(server, **GREEDY, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    content = choice.logprobs.content
    assert len(content) == 24
    data = b"".join(bytes(entry.bytes or []) for entry in content)
    assert data.decode("utf-8", "replace") == choice.message.content
    for entry in content:
        assert entry.token == bytes(entry.bytes or []).decode("utf-8", "replace")
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].bytes == entry.bytes  # greedy
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)


def test_logprobs_in_a_stream(server: OpenAIServing) -> None:
    options: dict[str, Any] = {**SEEDED, "logprobs": True, "top_logprobs": 2}
    choice, chunks = whole(server, **options).choices[0], streamed(server, **options)
    parts = [c.logprobs.content or [] for chunk in chunks for c in chunk.choices if c.logprobs]
    assert choice.logprobs is not None
    assert [entry for part in parts for entry in part] == choice.logprobs.content
    assert text_of(chunks) == choice.message.content


def test_logprobs_without_alternatives(server: OpenAIServing) -> None:
    choice = whole(server, **GREEDY, logprobs=True).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert all(entry.top_logprobs == [] for entry in choice.logprobs.content)


def test_stop_strings(server: OpenAIServing) -> None:
    text = whole(server, **GREEDY).choices[0].message.content
    assert text is not None
    stop = text[len(text) // 2 :][:3]
    body: dict[str, Any] = {**GREEDY, "stop": [stop, "never in there"]}
    answer, chunks = server.post(PATH, body).json(), streamed(server, **body)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)] == text_of(chunks)
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
    assert finish_of(chunks) == "stop"
    kept = {"no_stop_trim": True}
    expected = text[: text.index(stop) + len(stop)]
    assert whole(server, **body, extra=kept).choices[0].message.content == expected
    assert text_of(streamed(server, **body, extra=kept)) == expected


def test_stop_token_ids(server: OpenAIServing) -> None:
    options = {**GREEDY, "logprobs": True, "max_tokens": 3}
    content = server.post(PATH, options).json()["choices"][0]["logprobs"]["content"]
    tokens = [bytes(entry["bytes"]) for entry in content]
    third = smollm2_tokenizer().token_bytes.index(tokens[2])
    assert tokens[2] not in tokens[:2]
    body = {**GREEDY, "stop_token_ids": [third, 10**9]}
    choice = server.post(PATH, body).json()["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", third)
    assert choice["message"]["content"].encode() == b"".join(tokens[:2])
    choice = server.post(PATH, {**body, "no_stop_trim": True}).json()["choices"][0]
    assert choice["message"]["content"].encode() == b"".join(tokens)


def test_without_a_length_the_answer_may_fill_the_context(server: OpenAIServing) -> None:
    body = {"messages": HELLO, "temperature": 0, "ignore_eos": True}
    answer = server.post(PATH, body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT_LEN


def test_max_completion_tokens(server: OpenAIServing) -> None:
    body: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_completion_tokens": 24}
    assert (
        whole(server, **body).choices[0].message.content
        == whole(server, **GREEDY).choices[0].message.content
    )


@pytest.mark.parametrize("seed", range(4))
def test_json_objects(server: OpenAIServing, seed: int) -> None:
    body = {**SEEDED, "seed": seed, "response_format": {"type": "json_object"}, "max_tokens": 200}
    # The random model would hardly ever close anything by itself.
    body["logit_bias"] = {str(smollm2_tokenizer().encode("}")[0]): 12}
    choice = whole(server, **body).choices[0]
    assert choice.finish_reason == "stop" and choice.message.content is not None
    assert isinstance(json.loads(choice.message.content), dict)


def test_a_json_schema(server: OpenAIServing) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    shape = {"name": "report", "schema": schema, "strict": True}
    body: dict[str, Any] = {
        **SEEDED,
        "response_format": {"type": "json_schema", "json_schema": shape},
    }
    answer, chunks = whole(server, **body), streamed(server, **body)
    text = answer.choices[0].message.content
    assert text is not None and answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), schema)
    assert text_of(chunks) == text
    for given in (schema, json.dumps(schema)):
        extra = {"json_schema": given}
        assert whole(server, **SEEDED, extra=extra).choices[0].message.content == text


def test_choices_and_regex(server: OpenAIServing) -> None:
    chosen = whole(server, **SEEDED, extra={"choices": ["oak", "ash"]}).choices[0].message.content
    assert chosen in ("oak", "ash")
    text = whole(server, **SEEDED, extra={"regex": "[0-9]{4}-[0-9]{2}"}).choices[0].message.content
    assert text is not None and len(text) == 7 and text[4] == "-"


def test_content_in_parts_and_null_fields(server: OpenAIServing) -> None:
    parts = [
        {"type": "text", "text": "Tell me a story "},
        {"type": "text", "text": "about an oak."},
    ]
    nulls = dict.fromkeys(("stop", "n", "seed", "tools", "response_format", "logit_bias", "user"))
    body = {**GREEDY, **nulls, "messages": [{"role": "user", "content": parts}]}
    plain = server.post(PATH, GREEDY).json()
    answer = server.post(PATH, body).json()
    assert answer["choices"] == plain["choices"]


def test_an_earlier_answer_can_be_sent_back(server: OpenAIServing) -> None:
    answer = server.post(PATH, {**GREEDY, "max_tokens": 4}).json()["choices"][0]["message"]
    more = {"role": "user", "content": "Go on."}
    response = server.post(PATH, {**GREEDY, "messages": [*HELLO, answer, more]})
    assert response.status_code == 200


def test_text_in_messages_is_no_control_token(server: OpenAIServing) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]
    answer = server.post(PATH, {**GREEDY, "messages": messages}).json()
    expected = smollm2_tokenizer().encode_chat(messages)
    assert answer["usage"]["prompt_tokens"] == len(expected)
    empty = smollm2_tokenizer().encode_chat([{"role": "user", "content": ""}])
    assert len(expected) > len(empty) + 1


def test_what_changes_nothing_is_accepted(server: OpenAIServing) -> None:
    ignored = {
        "user": "me",
        "metadata": {"run": "1"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "me",
        "prompt_cache_key": "k",
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "modalities": ["text"],
        "skip_special_tokens": True,
        "best_of": 1,
    }
    answer = server.post(PATH, {**GREEDY, **ignored})
    assert answer.status_code == 200
    assert answer.json()["choices"] == server.post(PATH, GREEDY).json()["choices"]


def test_an_abort_is_a_result(server: OpenAIServing) -> None:
    async def abort_after_the_first_delta() -> str | None:
        stream = await server.openai.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            extra_body={"rid": "mine", "ignore_eos": True},
        )
        reason = None
        async for chunk in stream:
            reason = chunk.choices[0].finish_reason
            if chunk.choices[0].delta.content:
                server.runtime.client.abort("mine")
        return reason

    assert server.run(abort_after_the_first_delta()) == "abort"


def test_a_client_that_leaves_frees_its_slots(server: OpenAIServing) -> None:
    async def leave() -> None:
        stream = await server.openai.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            n=4,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        assert server.runtime.client.num_open == 4
        await stream.close()
        await stats_when(server.runtime, nothing_held)
        assert server.runtime.client.num_open == 0

    server.run(leave())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_anything_was_sent(stream: bool) -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            body = {"messages": HELLO, "n": 2, "ignore_eos": True, "stream": stream}
            with stopped_scheduler(runtime):
                exchange = Exchange(create_app(service), PATH, body)
                async with asyncio.timeout(DEADLINE_S):
                    while runtime.client.num_open < 2:
                        await runtime.client.run_in_worker(lambda: None)
                exchange.disconnect()
                await exchange.end()
            assert runtime.client.num_open == 0
            await stats_when(runtime, nothing_held)

    asyncio.run(leave())


def test_a_lost_process_ends_a_stream_with_an_error() -> None:
    async def lose(server: OpenAIServing) -> None:
        stream = await server.openai.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                server.runtime.lose_a_process(1)

    with openai_serving() as server:
        with pytest.raises(openai.APIError, match="the scheduler process ended"):
            server.run(lose(server))
        assert server.post(PATH, GREEDY).status_code == 503


def test_models(server: OpenAIServing) -> None:
    listed = server.plain.get("/v1/models").json()
    model = {
        "id": MODEL_NAME,
        "object": "model",
        "created": int(server.plain.service.started_at),
        "owned_by": "espalier",
        "max_model_len": CONTEXT_LEN,
    }
    assert listed == {"object": "list", "data": [model]}
    for name in (MODEL_NAME, "default", "models/tiny.gguf"):
        assert server.plain.get(f"/v1/models/{name}").json() == model
    assert server.plain.get("/v1/models/gpt-4").status_code == 404

    async def ids() -> list[str]:
        return [model.id async for model in server.openai.models.list()]

    assert server.run(ids()) == [MODEL_NAME]
