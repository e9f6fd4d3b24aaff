"""Who is admitted when, who yields, and what can never be served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import LogprobOptions, TokenizedRequest
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.control import FlushCache, Shutdown
from espalier.runtime.scheduler.ends import EndMatcher
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.scheduler.request import Request
from espalier.runtime.scheduler.waiting import WaitingQueue
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights, visible_bytes
from tests.harness import Harness

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


def message(length: int, max_new_tokens: int = 4, **fields: object) -> TokenizedRequest:
    return TokenizedRequest(
        rid="r",
        input_ids=np.arange(length, dtype=np.int32) % 256,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, seed=0),
        **fields,  # type: ignore[arg-type]
    )


def waiting_request(serial: int) -> Request:
    sampling = SamplingParams(seed=0)
    return Request.accept(serial, message(3), EndMatcher(sampling, (), visible_bytes))


@pytest.fixture
def requests() -> Iterator[list[Request]]:
    yield [waiting_request(serial) for serial in range(5)]


def test_longest_match_goes_first_and_arrival_breaks_ties(requests: list[Request]) -> None:
    lengths = {0: 1, 1: 7, 2: 3, 3: 7, 4: 0}
    queue = WaitingQueue("lpm", 16, lambda r: lengths[r.serial])
    for request in requests:
        queue.add(request)
    assert [r.serial for r in queue.ordered()] == [1, 3, 2, 0, 4]


def test_fcfs_is_the_order_of_arrival(requests: list[Request]) -> None:
    queue = WaitingQueue("fcfs", 16, lambda r: r.serial)
    for request in reversed(requests):
        queue.add(request)
    assert [r.serial for r in queue.ordered()] == [0, 1, 2, 3, 4]


def test_a_request_is_passed_over_at_most_max_passes_times(requests: list[Request]) -> None:
    queue = WaitingQueue("lpm", 3, lambda r: r.serial)  # later requests always match more
    queue.add(requests[0])
    for serial in range(10, 100):
        queue.add(waiting_request(serial))
        first = queue.ordered()[0]
        queue.admitted(first)
        if first is requests[0]:
            assert first.num_passes == 3
            return
    pytest.fail("the first request starved")


def test_a_cold_request_is_served_among_warm_ones() -> None:
    """End to end: with one row, at most `max_passes` warm requests go before the cold one."""
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), max_running_requests=1, max_passes=4)
    warm = [7] * 60
    harness.submit(warm, max_new_tokens=1)
    harness.run()
    cold = harness.submit([9] * 60, rid="cold", max_new_tokens=1)
    late = [harness.submit([*warm, i], rid=f"warm{i}", max_new_tokens=1) for i in range(20)]
    order: list[str] = []
    while len(order) < 21:
        harness.step()
        done = [rid for (rid, _), o in harness.outcomes.items() if o.finals and rid != "r1"]
        order += [rid for rid in done if rid not in order]
    assert order.index("cold") <= 4
    assert cold.finish.kind == "length"
    assert all(o.finish.kind == "length" for o in late)
    harness.close()


def test_a_request_that_does_not_fit_does_not_block_those_that_do() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), pool_tokens=200, new_token_reserve=1.0)
    harness.submit([1] * 100, rid="running", max_new_tokens=60)
    harness.step()
    large = harness.submit([2] * 120, rid="large", max_new_tokens=40)
    small = harness.submit([3] * 5, rid="small", max_new_tokens=3)
    while not small.finals:
        harness.step()
    assert not large.finals
    harness.run()
    assert large.finish.kind == "length"
    harness.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_the_newest_is_retracted_and_resumes_without_losing_tokens(overlap: bool) -> None:
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        pool_tokens=110,
        overlap=overlap,
        new_token_reserve=0.0,
    )
    first = harness.submit([1] * 30, max_new_tokens=50)
    second = harness.submit([2] * 30, max_new_tokens=50)
    harness.run()
    assert first.usage.num_retractions == 0
    assert second.usage.num_retractions > 0
    assert len(first.ids) == len(second.ids) == 50
    harness.assert_drained()
    harness.close()


def test_one_request_may_use_the_whole_pool() -> None:
    for overlap in (True, False):
        harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), pool_tokens=64, overlap=overlap)
        for salt in range(3):  # each must evict the one before
            outcome = harness.submit([salt] * 40, max_new_tokens=25)
            harness.run()
            assert len(outcome.ids) == 25
        repeated = harness.submit([2] * 40, max_new_tokens=25)
        harness.run()
        assert len(repeated.ids) == 25
        harness.assert_drained()
        harness.close()


LIMITS = RequestLimits(context_len=100, pool_tokens=80, vocab_size=256)


@pytest.mark.parametrize(
    ("length", "max_new_tokens", "param"),
    [(0, 1, "input_ids"), (101, 0, "input_ids"), (60, 41, "max_new_tokens"), (80, 2, "max_new")],
)
def test_what_can_never_fit_is_refused(length: int, max_new_tokens: int, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LIMITS.check(message(length, max_new_tokens))
    assert caught.value.param is not None and caught.value.param.startswith(param)


@pytest.mark.parametrize(("length", "max_new_tokens"), [(80, 1), (80, 0), (41, 40), (1, 80)])
def test_what_just_fits_is_accepted_and_served(length: int, max_new_tokens: int) -> None:
    LIMITS.check(message(length, max_new_tokens))
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), pool_tokens=80, context_len=100)
    outcome = harness.submit(list(range(length)), max_new_tokens=max_new_tokens)
    harness.run()
    assert len(outcome.ids) == max_new_tokens
    harness.close()


@pytest.mark.parametrize("bad", [-1, 256, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_refused_by_index(bad: int) -> None:
    request = message(3)
    request.input_ids[1] = bad
    with pytest.raises(InvalidRequest, match=r"input_ids\[1\]"):
        LIMITS.check(request)


@pytest.mark.parametrize(
    "options",
    [LogprobOptions(top=21), LogprobOptions(top=-1), LogprobOptions(prompt_start=4)],
)
def test_logprob_options_out_of_range_are_refused(options: LogprobOptions) -> None:
    with pytest.raises(InvalidRequest):
        LIMITS.check(message(3, logprobs=options))


def test_flushing_forgets_all_that_is_not_in_use() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary())
    harness.submit([1] * 50, max_new_tokens=5)
    harness.run()
    reply: Future[int] = Future()
    harness.scheduler.inbox.put(FlushCache(reply))
    harness.step()
    assert reply.result(timeout=0) == 54
    assert harness.cache.num_free == harness.cache.num_slots
    harness.close()


def test_shutdown_ends_everything_with_one_final_message() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), max_running_requests=2)
    outcomes = [harness.submit([i] * 20, max_new_tokens=50) for i in range(5)]
    for _ in range(4):
        harness.step()
    harness.scheduler.inbox.put(Shutdown())
    harness.scheduler.run()
    assert all(o.finish.kind == "abort" for o in outcomes)
    harness.assert_drained()
    harness.close()
