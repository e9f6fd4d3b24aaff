"""/v1/completions: the openai client over loopback, and plain HTTP."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from openai.types import Completion

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.http.openai.sampling import room_for_output
from espalier.runtime.messages import TokenizedRequest
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.submission import token_ids
from tests.http_serving import MODEL_NAME
from tests.inprocess import CONTEXT_LEN, smollm2_tokenizer
from tests.openai_app import OpenAIServing, openai_serving

PATH = "/v1/completions"
PROMPT = "The oak stood"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24}
SEEDED: dict[str, Any] = {"prompt": PROMPT, "seed": 7, "max_tokens": 24}


@pytest.fixture(scope="module")
def server() -> Generator[OpenAIServing]:
    with openai_serving() as server:
        yield server


def whole(server: OpenAIServing, **body: Any) -> Completion:
    create: Any = server.openai.completions.create  # its overloads fit no dictionary
    answer: Completion = server.run(create(model=MODEL_NAME, **body))
    return answer


def streamed(server: OpenAIServing, **body: Any) -> list[Completion]:
    async def collect() -> list[Completion]:
        stream: Any = await server.openai.completions.create(model=MODEL_NAME, stream=True, **body)
        return [chunk async for chunk in stream]

    return server.run(collect())


def texts_of(chunks: list[Completion]) -> list[str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[index] for index in range(len(texts))]


def test_a_whole_answer(server: OpenAIServing) -> None:
    body = server.post(PATH, {**GREEDY, "max_tokens": 5}).json()
    prompt_len = len(smollm2_tokenizer().encode(PROMPT, add_bos=True))
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL_NAME)
    [choice] = body["choices"]
    assert list(choice) == ["index", "text", "logprobs", "finish_reason", "matched_stop"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert body["usage"]["prompt_tokens"] == prompt_len
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == prompt_len + 5


@pytest.mark.parametrize("body", [GREEDY, SEEDED, {**SEEDED, "n": 3}])
def test_a_stream_gives_the_whole_answer(server: OpenAIServing, body: dict[str, Any]) -> None:
    answer = whole(server, **body)
    *chunks, last = streamed(server, **body, stream_options={"include_usage": True})
    assert texts_of(chunks) == [choice.text for choice in answer.choices]
    assert last.choices == [] and last.usage is not None and answer.usage is not None
    assert last.usage.total_tokens == answer.usage.total_tokens
    ends = [c.index for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert sorted(ends) == list(range(len(answer.choices)))


def test_a_batch_of_prompts_with_n_choices(server: OpenAIServing) -> None:
    prompts = [PROMPT, "Two trees", "A"]
    options: dict[str, Any] = {"seed": 3, "max_tokens": 6, "n": 2}
    answer = whole(server, prompt=prompts, **options)
    assert [choice.index for choice in answer.choices] == list(range(6))
    expected: list[str] = []
    for prompt in prompts:
        expected += [c.text for c in whole(server, prompt=prompt, **options).choices]
    assert [choice.text for choice in answer.choices] == expected
    assert len(set(expected)) == 6
    assert texts_of(streamed(server, prompt=prompts, **options)) == expected
    num_prompt = sum(len(smollm2_tokenizer().encode(p, add_bos=True)) for p in prompts)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == num_prompt
    assert answer.usage.completion_tokens == 6 * 6


def test_token_ids_as_prompts(server: OpenAIServing) -> None:
    ids = smollm2_tokenizer().encode(PROMPT, add_bos=True)
    text = whole(server, **GREEDY).choices[0].text
    assert whole(server, **{**GREEDY, "prompt": ids}).choices[0].text == text
    both = whole(server, **{**GREEDY, "prompt": [ids, ids[:2]]})
    assert both.choices[0].text == text
    assert both.usage is not None and both.usage.prompt_tokens == len(ids) + 2


def test_control_tokens_of_the_prompt_are_recognised(server: OpenAIServing) -> None:
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    usage = whole(server, **{**GREEDY, "prompt": prompt}).usage
    expected = smollm2_tokenizer().encode(prompt, allow_control=True, add_bos=True)
    assert usage is not None and usage.prompt_tokens == len(expected)
    assert len(expected) < len(smollm2_tokenizer().encode(prompt))


def test_the_default_length_is_clipped_to_what_fits(server: OpenAIServing) -> None:
    def num_tokens(prompt_len: int) -> tuple[int, str]:
        body = {"prompt": [5] * prompt_len, "temperature": 0, "ignore_eos": True}
        answer = server.post(PATH, body).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert num_tokens(3) == (16, "length")
    assert num_tokens(CONTEXT_LEN - 4) == (4, "length")
    assert num_tokens(CONTEXT_LEN) == (0, "length")


def test_the_room_behind_a_prompt_is_what_the_runtime_takes() -> None:
    def takes(limits: RequestLimits, prompt_len: int, length: int) -> bool:
        try:
            limits.check(
                TokenizedRequest(
                    rid="r",
                    input_ids=token_ids([1] * prompt_len),
                    sampling=SamplingParams(max_new_tokens=length, seed=0),
                )
            )
        except InvalidRequest:
            return False
        return True

    for context_len, pool_tokens in ((20, 100), (20, 12), (20, 20)):
        limits = RequestLimits(context_len, pool_tokens, vocab_size=10)
        for prompt_len in range(1, min(context_len, pool_tokens) + 1):
            room = room_for_output(prompt_len, limits)
            assert takes(limits, prompt_len, room)
            assert not takes(limits, prompt_len, room + 1)


def test_logprobs(server: OpenAIServing) -> None:
    choice = whole(server, **SEEDED, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops, offsets = logprobs.top_logprobs or [], logprobs.text_offset or []
    assert len(tokens) == len(values) == len(tops) == len(offsets) == 24
    for token, value, top in zip(tokens, values, tops, strict=True):
        assert top[token] == value <= 0
        assert 1 <= len(top) <= 3
        assert max(top.values()) >= value
    whole_tokens = [(at, t) for at, t in zip(offsets, tokens, strict=True) if "\ufffd" not in t]
    assert len(whole_tokens) > 5
    assert all(choice.text[at:].startswith(token) for at, token in whole_tokens)


def test_logprobs_of_the_chosen_tokens_only(server: OpenAIServing) -> None:
    logprobs = whole(server, **GREEDY, logprobs=0).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is None and len(logprobs.token_logprobs or []) == 24


def test_logprobs_in_a_stream(server: OpenAIServing) -> None:
    body: dict[str, Any] = {**SEEDED, "logprobs": 2, "n": 2}
    whole(server, **body)  # from here on torch computes the same shapes each time
    answer, chunks = whole(server, **body), streamed(server, **body)
    for choice in answer.choices:
        parts = [c.logprobs for k in chunks for c in k.choices if c.index == choice.index]
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [item for part in parts if part for item in getattr(part, name)]
            assert joined == getattr(choice.logprobs, name)


def test_a_stop_string(server: OpenAIServing) -> None:
    text = whole(server, **GREEDY).choices[0].text
    stop = text[len(text) // 2 :][:4]
    choice = whole(server, **GREEDY, stop=stop).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")
    assert texts_of(streamed(server, **GREEDY, stop=stop)) == [choice.text]


def test_penalties_bias_and_filters_reach_the_sampler(server: OpenAIServing) -> None:
    forced = smollm2_tokenizer().encode("oak")[0]
    body = {**GREEDY, "max_tokens": 4, "logit_bias": {str(forced): 100}}
    text = server.post(PATH, body).json()["choices"][0]["text"]
    assert text == smollm2_tokenizer().decode([forced] * 4)
    once = server.post(PATH, {**body, "logit_bias": {str(forced): 20}, "repetition_penalty": 2.0})
    assert once.json()["choices"][0]["text"] != text
    greedy = server.post(PATH, GREEDY).json()["choices"][0]["text"]
    narrow = server.post(PATH, {**SEEDED, "top_k": 1}).json()["choices"][0]["text"]
    assert narrow == greedy


def test_names_and_aborts(server: OpenAIServing) -> None:
    async def abort_one() -> dict[int, str | None]:
        stream: Any = await server.openai.completions.create(
            model=MODEL_NAME,
            prompt=["one", "two"],
            max_tokens=200,
            stream=True,
            extra_body={"rid": ["first", "second"], "ignore_eos": True},
        )
        assert server.runtime.client.abort("second")
        ends: dict[int, str | None] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                ends[choice.index] = choice.finish_reason
        return ends

    assert server.run(abort_one()) == {0: "length", 1: "abort"}


def test_a_constraint_that_does_not_compile(server: OpenAIServing) -> None:
    for stream in (False, True):
        response = server.post(PATH, {**GREEDY, "ebnf": "root ::= missing", "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "ebnf"
