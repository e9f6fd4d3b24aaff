"""Metrics: what is counted, under which names, and that the text form can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from espalier.runtime.client import OpenCalls
from espalier.runtime.grammar.stats import GrammarStats
from espalier.runtime.histogram import HistogramData
from espalier.runtime.http.metrics import Metrics
from espalier.runtime.http.outputs import Outputs
from espalier.runtime.messages import FinishKind, FinishReason, TokenLogprob, Usage
from espalier.runtime.programs.backend import GenerateChunk
from espalier.runtime.scheduler.stats import SchedulerHistograms, SchedulerStats
from tests.http_serving import Serving, serving

USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4)


def values(text: bytes) -> dict[str, float]:
    """Samples by name and labels."""
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def end(kind: FinishKind, choice: int = 0, usage: Usage | None = USAGE) -> GenerateChunk:
    return GenerateChunk(choice=choice, finish=FinishReason(kind=kind), usage=usage)


def test_one_request() -> None:
    metrics = Metrics()
    timer = metrics.start()
    timer.tokens(1)
    timer.tokens(2)
    timer.end(FinishReason(kind="length"), USAGE)
    found = values(metrics.render(None))
    for name, value in {
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 1,
        "request_time_per_output_token_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1,
        "prompt_tokens_total": 10,
        "generation_tokens_total": 3,
        "cached_tokens_total": 4,
        "num_requests_total[length]": 1,
        "num_requests_total[stop]": 0,
        "num_aborted_requests_total[client]": 0,
    }.items():
        assert found[f"espalier_{name}"] == value, name


def test_times_are_measured_from_the_arrival() -> None:
    metrics = Metrics()
    timer = metrics.start(started_s=0.0)  # long ago
    timer.tokens(1)
    timer.end(FinishReason(kind="stop"), None)
    found = values(metrics.render(None))
    ttft = found["espalier_time_to_first_token_seconds_sum"]
    assert 0 < ttft <= found["espalier_e2e_request_latency_seconds_sum"]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("client", FinishReason(kind="abort")),
        ("shutdown", FinishReason(kind="abort", shutdown=True)),
        ("invalid", FinishReason(kind="error", bad_request=True)),
        ("overload", FinishReason(kind="error", retry_after_s=0.5)),
        ("lost", FinishReason(kind="error", lost=True)),
        ("error", FinishReason(kind="error")),
    ],
)
def test_why_a_request_did_not_get_all(reason: str, finish: FinishReason) -> None:
    metrics = Metrics()
    metrics.start().end(finish, USAGE)
    metrics.start().end(FinishReason(kind="stop"), USAGE)
    found = values(metrics.render(None))
    counted = {name: value for name, value in found.items() if "aborted" in name and value}
    assert counted == {f"espalier_num_aborted_requests_total[{reason}]": 1}


def test_the_schedulers_part() -> None:
    stats = SchedulerStats(
        num_prompt_tokens=100,
        num_cached_tokens=25,
        num_running=3,
        num_waiting=5,
        num_compiling=2,
        num_retractions=7,
        pool_tokens=1000,
        free_tokens=300,
        evictable_tokens=200,
        leased_tokens=90,
        yieldable_tokens=50,
        grammars=GrammarStats(
            num_running=2, num_queued=4, num_stopped={"deadline": 6}, cache_bytes=8
        ),
    )
    found = values(Metrics().render(stats))
    for name, value in {
        "num_running_reqs": 3,
        "num_queue_reqs": 3,
        "num_grammar_queue_reqs": 2,
        "num_used_tokens": 450,
        "max_total_num_tokens": 1000,
        "kv_available_tokens": 300,
        "kv_evictable_tokens": 200,
        "kv_leased_tokens": 90,
        "kv_yieldable_tokens": 50,
        "token_usage": 0.45,
        "cache_hit_rate": 0.25,
        "num_retractions_total": 7,
        "grammar_compilations_running": 2,
        "grammar_compilations_queued": 4,
        "grammar_compilations_stopped_total[deadline]": 6,
        "grammar_compilations_stopped_total[crash]": 0,
        "grammar_cache_bytes": 8,
    }.items():
        assert found[f"espalier_{name}"] == value, name
    assert "espalier_num_running_reqs" not in values(Metrics().render(None))


def test_the_schedulers_histograms() -> None:
    data = HistogramData((0.1, 0.5), (2, 3, 4), 9.5)
    stats = SchedulerStats(
        num_judged={"none": 5, "both": 1},
        histograms=SchedulerHistograms(queue=data, phases={"plan": data}),
    )
    found = values(Metrics().render(stats))
    for bucket, count in (("0.1", 2), ("0.5", 5), ("+Inf", 9)):
        assert found[f"espalier_queue_time_seconds_bucket[{bucket}]"] == count
        assert found[f"espalier_loop_phase_seconds_bucket[{bucket}][plan]"] == count
    assert found["espalier_queue_time_seconds_sum"] == 9.5
    assert found["espalier_loop_phase_seconds_count[plan]"] == 9
    judged = {goal: found[f"espalier_slo_requests_total[{goal}]"] for goal in ("none", "itl")}
    assert judged == {"none": 5, "itl": 0}


def test_an_idle_server_divides_by_nothing() -> None:
    found = values(Metrics().render(SchedulerStats()))
    assert found["espalier_cache_hit_rate"] == found["espalier_token_usage"] == 0


class Calls:
    """Open calls whose outputs the test puts in."""

    def __init__(self, num_calls: int, num_choices: int) -> None:
        self.num_closed = 0
        self.opened = OpenCalls(num_choices, self._close)
        self.opened.rids += [f"r{i}" for i in range(num_calls)]

    def _close(self, rids: object) -> None:
        self.num_closed += 1


def test_outputs_of_one_choice_that_wait_come_as_one() -> None:
    async def run() -> None:
        calls, metrics = Calls(2, 3), Metrics()
        logprob = TokenLogprob(1, -0.5)
        for chunk in (
            GenerateChunk(text="a", ids=(1,), logprobs=(logprob,), prompt_logprobs=(logprob,)),
            GenerateChunk(choice=1, text="x", ids=(9,)),
            GenerateChunk(text="b", ids=(2, 3), logprobs=(logprob, logprob)),
            end("stop", choice=1),
        ):
            calls.opened.put(0, chunk)
        outputs = Outputs(calls.opened, metrics)
        first, (index, other) = await outputs.next()
        assert first == (
            0,
            GenerateChunk(
                text="ab", ids=(1, 2, 3), logprobs=(logprob,) * 3, prompt_logprobs=(logprob,)
            ),
        )
        assert (index, other.choice, other.text, other.ids) == (0, 1, "x", (9,))
        assert other.finish == FinishReason(kind="stop")
        calls.opened.put(0, end("stop"))
        calls.opened.put(1, end("length"))
        assert [index for index, _ in await outputs.next()] == [0, 1]
        assert outputs.num_open == 0
        outputs.close()
        assert calls.num_closed == 1
        found = values(metrics.render(None))
        assert found["espalier_num_requests_total[stop]"] == 2
        assert found["espalier_num_requests_total[length]"] == 1
        assert found["espalier_num_requests_total[disconnect]"] == 0
        assert found["espalier_generation_tokens_total"] == 4

    asyncio.run(run())


def test_collected_by_call_and_choice() -> None:
    async def run() -> None:
        calls = Calls(2, 3)
        for index, chunk in (
            (0, GenerateChunk(choice=1, text="b", ids=(2,))),
            (1, GenerateChunk(text="c", ids=(3,))),
            (0, GenerateChunk(choice=0, text="a", ids=(1,))),
            (1, GenerateChunk(text="d", finish=FinishReason(kind="stop"), num_kept_tokens=1)),
            (0, end("abort", choice=0)),
            (0, end("stop", choice=1)),
        ):
            calls.opened.put(index, chunk)
        first, second = await Outputs(calls.opened, Metrics()).collect()
        assert [completion.text for completion in first] == ["a", "b"]
        assert first[0].finish.kind == "abort"
        assert (second[0].text, second[0].ids, second[0].num_kept_tokens) == ("cd", (3,), 1)
        assert second[0].usage == Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=0)

    asyncio.run(run())


@pytest.mark.parametrize("started", [False, True])
def test_outputs_that_nobody_reads_to_their_end(started: bool) -> None:
    async def run() -> None:
        calls, metrics = Calls(1, 2), Metrics()
        outputs = Outputs(calls.opened, metrics)
        calls.opened.put(0, end("stop"))
        if started:
            await outputs.next()
        outputs.close()
        outputs.close()
        assert calls.num_closed == 1
        found = values(metrics.render(None))
        assert found["espalier_num_requests_total[disconnect]"] == (1 if started else 2)
        assert found["espalier_num_aborted_requests_total[disconnect]"] == (1 if started else 2)

    asyncio.run(run())


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


def test_the_route_counts_requests_of_all_routes(server: Serving) -> None:
    body = {"input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 5, "n": 2}}
    server.ok("/generate", body)
    server.post("/generate", {**body, "stream": True})
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = values(response.content)
    assert found["espalier_e2e_request_latency_seconds_count"] == 4
    assert found["espalier_generation_tokens_total"] == 20
    assert found["espalier_prompt_tokens_total"] == 16
    assert found["espalier_cached_tokens_total"] >= 9
    assert found["espalier_num_running_reqs"] == 0
    assert found["espalier_cache_hit_rate"] > 0
