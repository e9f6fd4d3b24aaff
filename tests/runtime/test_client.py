"""The tokenizer process's client: one final chunk each, epochs, names, limits, back-pressure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from espalier.runtime.client import OpenCalls, RuntimeClient
from espalier.runtime.errors import InvalidRequest, RequestFailed, Unavailable
from espalier.runtime.ipc.to_scheduler import Abort, FlushCache, SchedulerNews, Submit
from espalier.runtime.ipc.to_tokenizer import CacheFlushed, TextBatch, TextOutput
from espalier.runtime.messages import FinishReason, Regex, Usage
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk, TextPiece
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.limits import RequestLimits
from tests.inprocess import in_process_runtime, smollm2_tokenizer

LIMITS = RequestLimits(context_len=64, pool_tokens=1000, vocab_size=49152)
STOP = FinishReason(kind="stop")


class Wire:
    """The other end of a client's messages; `has_room` says whether it takes any."""

    def __init__(self, *, max_open_requests: int = 8) -> None:
        self.sent: list[SchedulerNews] = []
        self.has_room = True
        self.client = RuntimeClient(
            smollm2_tokenizer(), self._send, max_open_requests=max_open_requests
        )

    def _send(self, news: SchedulerNews) -> bool:
        if self.has_room:
            self.sent.append(news)
        return self.has_room

    def answer(self, calls: OpenCalls, index: int = 0, epoch: int = 0, **fields: Any) -> None:
        output = TextOutput(calls.rids[index], GenerateChunk(**fields))
        self.client.deliver(TextBatch(epoch, (output,)))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def call(**fields: Any) -> GenerateCall:
    defaults: dict[str, Any] = {
        "input_ids": [1, 2],
        "sampling": SamplingParams(max_new_tokens=4),
    }
    return GenerateCall(**{**defaults, **fields})


def serving(**options: int) -> Wire:
    wire = Wire(**options)
    wire.client.serve(0, LIMITS)
    return wire


def test_before_it_serves_everything_is_unavailable() -> None:
    async def test() -> None:
        client = Wire().client
        for attempt in (
            client.open([call()]),
            client.stats(),
            client.flush_cache(),
            client.encode([TextPiece("a")]),
            client.score([1], [[2]]),
        ):
            with pytest.raises(Unavailable, match="starting"):
                await attempt

    run(test())


def test_calls_are_submitted_together_and_answered_by_index() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open(
            [call(), call(sampling=SamplingParams(n=2, max_new_tokens=4))]
        )
        [submit] = wire.sent
        assert isinstance(submit, Submit)
        assert [(r.rid, r.choice) for r in submit.requests] == [
            (calls.rids[0], 0),
            (calls.rids[1], 0),
            (calls.rids[1], 1),
        ]
        wire.answer(calls, 1, choice=1, text="b", finish=STOP)
        wire.answer(calls, 0, text="a")
        wire.answer(calls, 0, finish=STOP)
        wire.answer(calls, 1, choice=0, finish=STOP)
        got = [await calls.next() for _ in range(4)]
        assert [(index, chunk.choice, chunk.text) for index, chunk in got] == [
            (1, 1, "b"),
            (0, 0, "a"),
            (0, 0, ""),
            (1, 0, ""),
        ]
        assert calls.num_open == 0 == wire.client.num_open
        calls.close()
        assert len(wire.sent) == 1  # nothing was left to abort

    run(test())


def test_closing_aborts_what_still_runs_once() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open([call(), call()])
        wire.answer(calls, 0, finish=STOP)
        calls.close()
        calls.close()
        assert wire.sent[1:] == [Abort(0, calls.rids[1])]
        assert wire.client.num_open == 0
        wire.answer(calls, 1, text="late")  # to nobody

    run(test())


def test_a_new_epoch_ends_every_choice_with_one_error() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open([call(sampling=SamplingParams(n=3, max_new_tokens=4))])
        wire.answer(calls, choice=1, finish=STOP)
        wire.client.new_epoch(1, "the scheduler process ended")
        wire.answer(calls, choice=0, text="old")  # of the old epoch: dropped
        got = [(await calls.next())[1] for _ in range(3)]
        assert sorted(chunk.choice for chunk in got) == [0, 1, 2]
        lost = [chunk.finish for chunk in got if chunk.finish and chunk.finish.lost]
        assert len(lost) == 2 and "scheduler process ended" in lost[0].message
        assert calls.num_open == 0 == wire.client.num_open
        with pytest.raises(Unavailable, match="recovers.*scheduler"):
            await wire.client.open([call()])
        wire.client.serve(0, LIMITS)  # said before the death
        with pytest.raises(Unavailable, match="recovers"):
            await wire.client.open([call()])
        wire.client.serve(1, LIMITS)
        again = await wire.client.open([call()])
        assert isinstance(wire.sent[-1], Submit) and wire.sent[-1].epoch == 1
        again.close()

    run(test())


def test_programs_meet_a_lost_request_as_an_error() -> None:
    async def test() -> None:
        wire = serving()
        stream = wire.client.generate(call())
        first = asyncio.ensure_future(anext(stream))
        while not wire.sent:
            await asyncio.sleep(0)
        wire.client.new_epoch(1, "the scheduler process ended")
        with pytest.raises(RequestFailed, match="scheduler process ended"):
            await first

    run(test())


def test_questions_end_with_the_epoch_and_are_matched_by_call() -> None:
    async def test() -> None:
        wire = serving()
        one, two = (asyncio.ensure_future(wire.client.flush_cache()) for _ in range(2))
        while len(wire.sent) < 2:
            await asyncio.sleep(0)
        first, second = wire.sent
        assert isinstance(first, FlushCache) and isinstance(second, FlushCache)
        wire.client.deliver(CacheFlushed(0, second.call, 22))
        assert await two == 22
        wire.client.new_epoch(1, "gone")
        with pytest.raises(Unavailable, match="gone"):
            await one
        with pytest.raises(Unavailable, match="did not answer"):
            wire.client.serve(1, LIMITS)
            await wire.client.stats(timeout_s=0.0)

    run(test())


def test_only_so_many_sequences_are_open() -> None:
    async def test() -> None:
        wire = serving(max_open_requests=3)
        first = await wire.client.open([call(sampling=SamplingParams(n=2, max_new_tokens=1))])
        with pytest.raises(Unavailable, match="queue is full: 2"):
            await wire.client.open([call(), call()])
        assert len(wire.sent) == 1  # both or none
        second = await wire.client.open([call()])
        wire.answer(first, choice=0, finish=STOP)
        third = await wire.client.open([call()])
        for calls in (first, second, third):
            calls.close()
        assert wire.client.num_open == 0

    run(test())


def test_a_full_queue_refuses_requests_but_keeps_aborts() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open([call()])
        wire.has_room = False
        with pytest.raises(Unavailable, match="keep up"):
            await wire.client.open([call()])
        calls.close()
        assert len(wire.sent) == 1
        wire.has_room = True
        while len(wire.sent) < 2:
            await asyncio.sleep(0.01)
        assert wire.sent[1] == Abort(0, calls.rids[0])

    run(test())


def test_names_are_exact_and_not_used_twice() -> None:
    async def test() -> None:
        wire = serving()
        one = await wire.client.open([call()], ["req-1"])
        ten = await wire.client.open([call()], ["req-10"])
        for names in (["req-1"], ["x", "x"]):
            with pytest.raises(InvalidRequest, match="Duplicate request ID") as refused:
                await wire.client.open([call() for _ in names], names)
            assert refused.value.param == "rid"
        assert wire.client.abort("req-1") and not wire.client.abort("req")
        assert wire.sent[2:] == [Abort(0, one.rids[0])]
        wire.answer(one, finish=FinishReason(kind="abort"))
        (await wire.client.open([call()], ["req-1"])).close()  # free again
        ten.close()

    run(test())


def test_too_long_a_text_is_refused_before_it_is_tokenised() -> None:
    async def test() -> None:
        wire = serving()
        with pytest.raises(InvalidRequest, match="context length") as refused:
            await wire.client.encode([TextPiece("a" * 10_000_000)])
        assert refused.value.param == "text"

    run(test())


def test_bad_calls_submit_nothing() -> None:
    async def test() -> None:
        wire = serving()
        bad = [
            call(input_ids=[]),
            call(input_ids=[-1]),
            call(constraint=Regex("a\0")),
            call(input_ids=[1] * 65),
        ]
        for wrong in bad:
            with pytest.raises(InvalidRequest):
                await wire.client.open([call(), wrong])
        assert wire.sent == [] and wire.client.num_open == 0

    run(test())


def test_closing_the_client_aborts_and_tells_everybody() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open([call()])
        wire.client.close()
        finish = (await calls.next())[1].finish
        assert finish is not None and finish.kind == "abort" and finish.shutdown
        assert wire.sent[1:] == [Abort(0, calls.rids[0])]
        with pytest.raises(Unavailable, match="shutting down"):
            await wire.client.open([call()])

    run(test())


@pytest.mark.parametrize("end", ["close", "new_epoch"])
def test_who_is_cut_off_is_charged_for_what_has_come(end: str) -> None:
    async def test() -> None:
        wire = serving()
        two = SamplingParams(max_new_tokens=4, n=2)
        calls = await wire.client.open([call(input_ids=[1, 2, 3], sampling=two)])
        wire.answer(calls, ids=(5, 6))
        wire.answer(calls, ids=(7,))
        wire.client.close() if end == "close" else wire.client.new_epoch(1, "a process ended")
        chunks = [(await calls.next())[1] for _ in range(4)]
        usages = {chunk.choice: chunk.usage for chunk in chunks if chunk.finish is not None}
        assert usages == {
            choice: Usage(prompt_tokens=3, completion_tokens=count, cached_tokens=0)
            for choice, count in enumerate([3, 0])
        }

    run(test())


def test_a_newer_epoch_may_be_met_in_the_order_to_serve() -> None:
    async def test() -> None:
        wire = serving()
        calls = await wire.client.open([call()])
        wire.client.serve(1, LIMITS)
        finish = (await calls.next())[1].finish
        assert finish is not None and finish.lost and wire.client.num_open == 0
        (await wire.client.open([call()])).close()
        assert [news.epoch for news in wire.sent[1:]] == [1, 1]

    run(test())


@pytest.mark.parametrize("closes", [False, True])
def test_one_that_ends_takes_nothing_however_the_processes_are(closes: bool) -> None:
    """A process that is replaced while the others drain is ready a moment later."""

    async def test() -> None:
        wire = serving()
        wire.client.close() if closes else wire.client.refuse("the end")
        wire.client.new_epoch(1, "the scheduler process ended")
        wire.client.serve(1, LIMITS)
        for attempt in (wire.client.open([call()]), wire.client.stats()):
            with pytest.raises(Unavailable, match="end|shutting down") as refused:
                await attempt
            assert "recovers" not in str(refused.value)

    run(test())


def test_closing_the_client_ends_questions_and_refuses_work() -> None:
    async def test() -> None:
        wire = serving()
        question = asyncio.ensure_future(wire.client.stats())
        begun, go_on = threading.Event(), threading.Event()

        def work() -> int:
            begun.set()
            assert go_on.wait(10)
            return 7

        first, waiting = (
            asyncio.ensure_future(wire.client.run_in_worker(task)) for task in (work, lambda: 8)
        )
        while not (wire.sent and begun.is_set()):
            await asyncio.sleep(0)
        wire.client.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await question
        with pytest.raises(Unavailable, match="shutting down"):
            await wire.client.run_in_worker(lambda: 9)
        go_on.set()
        assert (await first, await waiting) == (7, 8)

    run(test())


def test_over_a_real_scheduler_nothing_is_held_after_a_lost_process() -> None:
    async def test() -> None:
        async with in_process_runtime() as runtime:
            sampling = SamplingParams(max_new_tokens=400, ignore_eos=True, n=2)
            calls = await runtime.client.open([call(sampling=sampling)])
            await calls.next()
            runtime.lose_a_process(1)
            while calls.num_open:
                await calls.next()
            runtime.client.serve(1, runtime.limits)
            stats = await runtime.client.stats()
            while stats.num_running:
                stats = await runtime.client.stats()
            [first, *_] = [c async for c in runtime.client.generate(call())]
            assert first.ids
            scores = await runtime.client.score([1, 2], [[3], [4, 5]])
            assert [len(score) for score in scores] == [1, 2]

    run(test())
