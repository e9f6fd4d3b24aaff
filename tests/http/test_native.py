"""/generate, whole answers: names, shapes and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_serving import Serving, serving, when

GREEDY = {"temperature": 0, "max_new_tokens": 6}
TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


def generate(server: Serving, **body: Any) -> Any:
    return server.ok("/generate", body)


def test_the_shape_of_an_answer(server: Serving) -> None:
    answer = generate(server, text=TEXT, sampling_params=GREEDY, rid="mine")
    tokenizer = server.service.client.tokenizer
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert len(answer["output_ids"]) == 6
    assert answer["text"] == tokenizer.decode(answer["output_ids"])
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta.pop("cached_tokens") in (0, 3)
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 6},
        "prompt_tokens": len(tokenizer.encode(TEXT)),
        "completion_tokens": 6,
        "forced_tokens": 0,
        "num_retractions": 0,
        "kept_tokens": 6,
    }


def test_put_is_as_good_as_post(server: Serving) -> None:
    body = {"text": TEXT, "sampling_params": GREEDY}
    put = server.request("PUT", "/generate", json=body).json()
    assert put["output_ids"] == server.ok("/generate", body)["output_ids"]


def test_text_is_tokenised_with_its_control_tokens(server: Serving) -> None:
    text = "<|im_start|>user\nhello<|im_end|>\n"
    ids = server.service.client.tokenizer.encode(text, allow_control=True, add_bos=True)
    by_text = generate(server, text=text, sampling_params=GREEDY)
    by_ids = generate(server, input_ids=ids, sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert by_text["meta_info"]["prompt_tokens"] == len(ids)


def test_defaults(server: Serving) -> None:
    answer = generate(server, text=TEXT, sampling_params={"ignore_eos": True})
    assert answer["meta_info"]["completion_tokens"] == 128
    assert re.fullmatch("[0-9a-f]{32}", answer["meta_info"]["id"])


def test_null_is_not_given(server: Serving) -> None:
    nothing = {"temperature": 0, "max_new_tokens": 6, "stop": None, "json_schema": None, "n": None}
    answer = generate(
        server, text=TEXT, sampling_params=nothing, rid=None, image_data=None, lora_path=[None]
    )
    assert len(answer["output_ids"]) == 6


def test_a_batch_is_answered_in_order(server: Serving) -> None:
    texts = [TEXT, "The sea", "A"]
    batch = generate(server, text=texts, sampling_params=GREEDY, rid=["a", "b", "c"])
    assert [answer["meta_info"]["id"] for answer in batch] == ["a", "b", "c"]
    for text, answer in zip(texts, batch, strict=True):
        alone = generate(server, text=text, sampling_params=GREEDY)
        assert answer["output_ids"] == alone["output_ids"]


def test_a_batch_of_one_is_a_list(server: Serving) -> None:
    assert len(generate(server, text=[TEXT], sampling_params=GREEDY)) == 1
    assert len(generate(server, input_ids=[[1, 2]], sampling_params=[GREEDY])) == 1


def test_choices_come_prompt_by_prompt(server: Serving) -> None:
    many = {"max_new_tokens": 6, "n": 2, "sampling_seed": 5, "ignore_eos": True}
    batch = generate(server, input_ids=[[1, 2, 3], [4, 5]], sampling_params=many)
    assert [a["meta_info"]["prompt_tokens"] for a in batch] == [3, 3, 2, 2]
    assert batch[0]["output_ids"] != batch[1]["output_ids"]
    single = generate(server, input_ids=[1, 2, 3], sampling_params=many)
    assert [a["output_ids"] for a in single] == [a["output_ids"] for a in batch[:2]]


def test_each_prompt_may_have_its_own_parameters(server: Serving) -> None:
    batch = generate(
        server,
        input_ids=[[1, 2, 3], [1, 2, 3]],
        sampling_params=[{"max_new_tokens": 2}, {"max_new_tokens": 3}],
        return_logprob=[False, True],
    )
    assert [len(a["output_ids"]) for a in batch] == [2, 3]
    assert ["output_token_logprobs" in a["meta_info"] for a in batch] == [False, True]


def test_the_seed_decides(server: Serving) -> None:
    def ids(seed: int) -> list[int]:
        fields = {"max_new_tokens": 8, "sampling_seed": seed}
        answer: dict[str, Any] = generate(server, text=TEXT, sampling_params=fields)
        found: list[int] = answer["output_ids"]
        return found

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_stop_strings_and_what_they_leave(server: Serving) -> None:
    whole = generate(server, text=TEXT, sampling_params={"temperature": 0, "max_new_tokens": 20})
    stop = whole["text"][4:7]
    fields = {"temperature": 0, "max_new_tokens": 20, "stop": stop}
    trimmed = generate(server, text=TEXT, sampling_params=fields)
    assert trimmed["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert trimmed["text"] == whole["text"][: whole["text"].index(stop)]
    kept = generate(server, text=TEXT, sampling_params={**fields, "no_stop_trim": True})
    assert kept["text"] == trimmed["text"] + stop
    num_kept = kept["meta_info"]["kept_tokens"]
    tokenizer = server.service.client.tokenizer
    assert trimmed["text"].startswith(tokenizer.decode(kept["output_ids"][:num_kept]))


def test_stop_ids_and_what_they_leave(server: Serving) -> None:
    whole = generate(server, text=TEXT, sampling_params={"temperature": 0, "max_new_tokens": 20})
    stop_id = whole["output_ids"][5]
    fields = {"temperature": 0, "max_new_tokens": 20, "stop_token_ids": [stop_id, 119_690]}
    trimmed = generate(server, text=TEXT, sampling_params=fields)
    assert trimmed["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop_id}
    assert trimmed["output_ids"][-1] == stop_id
    tokenizer = server.service.client.tokenizer
    assert trimmed["text"] == tokenizer.decode(trimmed["output_ids"][:-1])
    kept = generate(server, text=TEXT, sampling_params={**fields, "no_stop_trim": True})
    assert kept["text"] == tokenizer.decode(trimmed["output_ids"])


def spelled(server: Serving, token_id: int) -> str:
    return server.service.client.tokenizer.token_bytes[token_id].decode("utf-8", "replace")


def test_log_probabilities(server: Serving) -> None:
    ids = [10, 20, 30]
    answer = generate(
        server,
        input_ids=ids,
        sampling_params={"temperature": 0, "max_new_tokens": 4},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert all(entry[0] <= 0 for entry in meta["input_token_logprobs"][1:])
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["input_top_logprobs"][1:]] == [2, 2]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    for (logprob, token_id, text), top in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert text == spelled(server, token_id)
        assert top[0] == [logprob, token_id, text]  # greedy: the most likely one
        assert top[1][0] <= logprob


def test_log_probabilities_of_the_prompt_alone(server: Serving) -> None:
    answer = generate(
        server,
        input_ids=[10, 20, 30],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=1,
    )
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[20, None], [30, None]]
    assert meta["output_token_logprobs"] == []
    assert "input_top_logprobs" not in meta


def test_by_default_the_prompt_has_none(server: Serving) -> None:
    answer = generate(
        server, input_ids=[1, 2], sampling_params={"max_new_tokens": 2}, return_logprob=True
    )
    assert answer["meta_info"]["input_token_logprobs"] == []
    assert len(answer["meta_info"]["output_token_logprobs"]) == 2


@pytest.mark.parametrize("as_text", [False, True])
def test_json_schemas_are_objects_or_text(server: Serving, as_text: bool) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    fields = {"json_schema": json.dumps(schema) if as_text else schema, "max_new_tokens": 32}
    answer = generate(server, text=TEXT, sampling_params=fields)
    assert isinstance(json.loads(answer["text"])["ok"], bool)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"ebnf": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"choices": ["red", "green"]}, "red|green"),
    ],
)
def test_other_constraints(server: Serving, fields: dict[str, Any], pattern: str) -> None:
    answer = generate(server, text=TEXT, sampling_params={**fields, "max_new_tokens": 16})
    assert re.fullmatch(pattern, answer["text"])


def test_logit_bias(server: Serving) -> None:
    fields = {"temperature": 0, "max_new_tokens": 3, "logit_bias": {"77": 100}}
    answer = generate(server, text=TEXT, sampling_params=fields)
    assert answer["output_ids"] == [77, 77, 77]


def test_salts_keep_cached_tokens_apart(server: Serving) -> None:
    ids = list(range(1000, 1040))

    def cached(**salts: str) -> int:
        answer = generate(server, input_ids=ids, sampling_params={"max_new_tokens": 1}, **salts)
        found: int = answer["meta_info"]["cached_tokens"]
        return found

    assert cached(cache_salt="ab") == 0
    assert cached(cache_salt="ab") == len(ids) - 1
    assert cached(extra_key="ab") == 0
    assert cached(cache_salt="a", extra_key="b") == 0
    assert cached(cache_salt="", extra_key="ab") == 0
    assert cached() == 0
    assert cached(cache_salt="ab") == len(ids) - 1


def test_an_abort_is_an_answer(server: Serving) -> None:
    async def abort_while_it_runs() -> Any:
        body = {"text": TEXT, "rid": "victim", "sampling_params": LONG}
        task = server.runner.get_loop().create_task(server.client.post("/generate", json=body))
        await when(lambda: server.service.client.num_open == 1)
        abort = await server.client.post("/abort_request", json={"rid": "victim"})
        assert abort.json() == {"num_aborted": 1}
        return await task, await server.client.post("/abort_request", json={"rid": "victim"})

    response, again = server.runner.run(abort_while_it_runs())
    assert response.status_code == 200
    finish = response.json()["meta_info"]["finish_reason"]
    assert finish["type"] == "abort"
    assert again.json() == {"num_aborted": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_would_be_too_late_is_429(stream: bool) -> None:
    with serving(scheduler={"slo_ttft_s": 1e-9}) as server:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 12}}
        assert server.post("/generate", body).status_code == 200  # no steps are known yet
        response = server.post("/generate", {**body, "input_ids": [8, 9], "stream": stream})
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["type"] == "rate_limit_error"


LONG = {"max_new_tokens": 480, "ignore_eos": True}


def test_a_lost_process_is_503(server: Serving) -> None:
    """Last in this file: the runtime does not come back."""

    async def lose_it_while_it_runs() -> Any:
        body = {"text": [TEXT, TEXT], "sampling_params": LONG}
        task = server.runner.get_loop().create_task(server.client.post("/generate", json=body))
        await when(lambda: server.service.client.num_open == 2)
        server.runtime.lose_a_process(1)
        return await task, await server.client.post("/generate", json=body)

    for response in server.runner.run(lose_it_while_it_runs()):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["type"] == "service_unavailable"
