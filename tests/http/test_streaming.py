"""/generate as a stream: events add up to the whole answer; who leaves frees what he held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from espalier.runtime.http.app import create_app
from tests.http_serving import (
    Exchange,
    Serving,
    events_of,
    nothing_held,
    served_runtime,
    serving,
    stats_when,
    stopped_scheduler,
    when,
)

GREEDY = {"temperature": 0, "max_new_tokens": 12}
LONG = {"max_new_tokens": 480, "ignore_eos": True}
TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


def stream(server: Serving, **body: Any) -> list[Any]:
    response = server.post("/generate", {"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    return events_of(response.text)


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"].pop("e2e_latency")
    answer["meta_info"].pop("cached_tokens")
    return answer


def test_events_are_cumulative(server: Serving) -> None:
    body = {"text": TEXT, "sampling_params": GREEDY, "rid": "a"}
    events = stream(server, **body)
    whole = server.ok("/generate", body)
    for earlier, later in zip(events, events[1:], strict=False):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        meta = earlier["meta_info"]
        assert meta["finish_reason"] is None
        assert meta["completion_tokens"] == len(earlier["output_ids"])
        assert meta["prompt_tokens"] == whole["meta_info"]["prompt_tokens"]
    assert without_times(events[-1]) == without_times(whole)
    assert "index" not in events[-1]


def test_events_may_be_deltas(server: Serving) -> None:
    body = {
        "text": TEXT,
        "sampling_params": GREEDY,
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    events = stream(server, **body, incremental_streaming_output=True)
    whole = server.ok("/generate", body)
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [i for event in events for i in event["output_ids"]] == whole["output_ids"]
    for side in ("input_token_logprobs", "output_token_logprobs"):
        entries = [entry for event in events for entry in event["meta_info"][side]]
        assert [e[1] for e in entries] == [e[1] for e in whole["meta_info"][side]]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert events[-1]["meta_info"]["completion_tokens"] == 12


def test_cumulative_log_probabilities(server: Serving) -> None:
    body = {
        "text": TEXT,
        "sampling_params": GREEDY,
        "return_logprob": True,
        "logprob_start_len": 1,
        "top_logprobs_num": 2,
    }
    events = stream(server, **body)
    whole = server.ok("/generate", body)
    for side in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"):
        assert len(events[-1]["meta_info"][side]) == len(whole["meta_info"][side])
    for event in events:
        assert len(event["meta_info"]["output_token_logprobs"]) == len(event["output_ids"])


def test_a_batch_numbers_its_events(server: Serving) -> None:
    fields = [{**GREEDY, "n": 2, "temperature": 1, "sampling_seed": 7}, GREEDY]
    body = {"input_ids": [[1, 2, 3], [4, 5]], "sampling_params": fields}
    events = stream(server, **body)
    whole = server.ok("/generate", body)
    last = {event["index"]: event["output_ids"] for event in events}
    assert [last[index] for index in range(3)] == [answer["output_ids"] for answer in whole]


def test_a_matched_stop_is_never_sent_but_on_request(server: Serving) -> None:
    whole = server.ok(
        "/generate", {"text": TEXT, "sampling_params": {**GREEDY, "max_new_tokens": 20}}
    )
    stop = whole["text"][4:7]
    fields = {**GREEDY, "max_new_tokens": 20, "stop": stop}
    trimmed = stream(server, text=TEXT, sampling_params=fields)
    before = whole["text"][: whole["text"].index(stop)]
    assert all(before.startswith(event["text"]) for event in trimmed)
    assert trimmed[-1]["text"] == before
    kept = stream(
        server,
        text=TEXT,
        sampling_params={**fields, "no_stop_trim": True},
        incremental_streaming_output=True,
    )
    assert "".join(event["text"] for event in kept) == before + stop


def test_an_abort_ends_a_stream_well(server: Serving) -> None:
    async def abort_it() -> str:
        body = {"text": TEXT, "rid": "victim", "stream": True, "sampling_params": LONG}
        task = server.runner.get_loop().create_task(server.client.post("/generate", json=body))
        await when(lambda: server.service.client.num_open == 1)
        await server.client.post("/abort_request", json={"rid": "victim"})
        return (await task).text

    events = events_of(server.runner.run(abort_it()))
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_what_fails_late_is_the_last_event() -> None:
    async def lose_a_process() -> None:
        async with served_runtime() as (runtime, service):
            body = {"input_ids": [[1], [2]], "stream": True, "sampling_params": LONG}
            call = Exchange(create_app(service), "/generate", body)
            await call.event()
            runtime.lose_a_process(1)
            pieces: list[bytes] = []
            while not pieces or pieces[-1]:
                pieces.append(await call.event())
            await call.end()
            events = events_of(b"".join(pieces).decode())
            last = {event["index"]: event for event in events}
            assert [last[i]["error"]["code"] for i in (0, 1)] == [503, 503]
            assert "meta_info" not in last[0]

    asyncio.run(lose_a_process())


def test_a_grammar_that_does_not_compile_is_a_400_or_the_last_event(server: Serving) -> None:
    body = {"text": TEXT, "sampling_params": {"ebnf": "root ::= undefined_rule"}}
    response = server.post("/generate", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "sampling_params.ebnf"
    [event] = stream(server, **body)
    assert event == {"error": response.json()["error"]}


BODIES: dict[str, dict[str, Any]] = {
    "stream": {"text": TEXT, "stream": True, "sampling_params": LONG},
    "whole": {"text": TEXT, "sampling_params": LONG},
    "batch": {
        "text": [TEXT, "The sea"],
        "stream": True,
        "sampling_params": {**LONG, "n": 2},
    },
    "constrained": {
        "text": TEXT,
        "stream": True,
        "sampling_params": {"regex": "[a-z]{400}", "max_new_tokens": 450},
    },
}


@pytest.mark.parametrize("kind", BODIES)
def test_leaving_before_the_scheduler_has_it(kind: str) -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            with stopped_scheduler(runtime):
                call = Exchange(create_app(service), "/generate", BODIES[kind])
                await when(lambda: runtime.client.num_open > 0)
                call.disconnect()
                await call.end()
                assert runtime.client.num_open == 0
            await stats_when(runtime, nothing_held)

    asyncio.run(leave())


@pytest.mark.parametrize("kind", BODIES)
def test_leaving_the_queue(kind: str) -> None:
    async def leave() -> None:
        async with served_runtime(max_running_requests=1) as (runtime, service):
            app = create_app(service)
            first = Exchange(app, "/generate", BODIES["stream"])
            await first.event()
            second = Exchange(app, "/generate", BODIES[kind])
            await when(lambda: runtime.client.num_open > 1)
            await stats_when(runtime, lambda stats: stats.num_waiting > 0)
            second.disconnect()
            await second.end()
            stats = await stats_when(runtime, lambda stats: stats.num_waiting == 0)
            assert stats.num_running <= 1
            first.disconnect()
            await first.end()
            await stats_when(runtime, nothing_held)

    asyncio.run(leave())


@pytest.mark.parametrize("kind", ["stream", "batch", "constrained"])
def test_leaving_a_running_stream(kind: str) -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            call = Exchange(create_app(service), "/generate", BODIES[kind])
            assert (await call.event()).startswith(b"data: ")
            call.disconnect()
            await call.end()
            assert runtime.client.num_open == 0
            stats = await stats_when(runtime, nothing_held)
            assert stats.num_output_tokens < 400
            assert b'finish="disconnect"' in service.metrics.render(None)

    asyncio.run(leave())


def test_leaving_while_it_runs_and_answers_at_its_end() -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            call = Exchange(create_app(service), "/generate", BODIES["whole"])
            await stats_when(runtime, lambda stats: stats.num_running == 1)
            call.disconnect()
            await call.end()
            assert runtime.client.num_open == 0
            await stats_when(runtime, nothing_held)

    asyncio.run(leave())


def test_leaving_while_the_body_is_sent() -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            call = Exchange(create_app(service), "/generate", BODIES["stream"], whole=False)
            call.disconnect()
            await call.end()
            assert (await call.message())["status"] == 499  # to nobody
            assert runtime.client.num_open == 0

    asyncio.run(leave())


def test_leaving_while_the_text_is_tokenised() -> None:
    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            go = asyncio.Event()
            loop = asyncio.get_running_loop()
            busy = asyncio.ensure_future(
                runtime.client.run_in_worker(
                    lambda: asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
                )
            )
            call = Exchange(create_app(service), "/generate", BODIES["stream"])
            call.disconnect()
            await call.end()
            go.set()
            await busy
            assert runtime.client.num_open == 0
            assert (await runtime.client.stats()).num_forward_passes == 0

    asyncio.run(leave())


def test_leaving_without_having_read() -> None:
    """The connection is full, so the application hangs in sending when its client goes."""

    async def leave() -> None:
        async with served_runtime() as (runtime, service):
            for pieces in (0, 2):  # before the response has started, and amid it
                call = Exchange(create_app(service), "/generate", BODIES["stream"])
                if pieces == 0:
                    call.stop_reading()
                for _ in range(pieces):
                    await call.event()
                call.stop_reading()
                async with asyncio.timeout(30):
                    await call.blocked.wait()
                call.disconnect()
                await call.end()
                assert runtime.client.num_open == 0
                await stats_when(runtime, nothing_held)

    asyncio.run(leave())


def test_a_slow_reader_gets_fewer_and_larger_events() -> None:
    async def read_slowly() -> None:
        async with served_runtime() as (runtime, service):
            body = {**BODIES["stream"], "incremental_streaming_output": True}
            call = Exchange(create_app(service), "/generate", body)
            await call.event()
            call.stop_reading()
            await when(lambda: runtime.client.num_open == 0)
            call.read_on()
            await call.end()
            assert call.num_unread() < 10
            pieces = [await call.event() for _ in range(call.num_unread())]
            events = events_of(b"".join(pieces).decode())
            assert events[-1]["meta_info"]["completion_tokens"] == 480
            assert max(len(event["output_ids"]) for event in events) > 100

    asyncio.run(read_slowly())
