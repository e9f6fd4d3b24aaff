"""Who is admitted when, who yields, and what can never be served."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.radix.cache import RadixCache
from espalier.runtime.config import SchedulePolicy
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import LogprobOptions, SchedulingHints, TokenizedRequest
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.control import FlushCache, Shutdown
from espalier.runtime.scheduler.ends import EndMatcher
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.scheduler.policies import line_maker
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


def waiting_request(serial: int, ids: Sequence[int] = (1, 2, 3), **hints: Any) -> Request:
    sampling = SamplingParams(seed=0)
    asked = message(3, hints=SchedulingHints(**hints))
    asked = msgspec.structs.replace(asked, input_ids=np.array(ids, np.int32))
    return Request.accept(serial, asked, EndMatcher(sampling, (), visible_bytes))


def queue_of(policy: SchedulePolicy, max_passes: int = 16, **options: Any) -> WaitingQueue:
    return WaitingQueue(line_maker(policy, RadixCache(64), share=True), max_passes, **options)


def order(queue: WaitingQueue) -> list[int]:
    """Serials in the order in which requests are tried when none fits."""
    tried: list[int] = []
    while request := queue.next(tried):
        tried.append(request.serial)
    return tried


def fill(cache: RadixCache, ids: Sequence[int]) -> None:
    """Leave `ids` in the cache."""
    handle = cache.lock(cache.match_prefix((), np.empty(0, np.int32)))
    slots = cache.alloc(len(ids))
    assert slots is not None
    cache.unlock(cache.insert(handle, np.array(ids, np.int32), slots, after_step=None))


def test_longest_match_goes_first_and_arrival_breaks_ties() -> None:
    cache = RadixCache(64)
    queue = WaitingQueue(line_maker("lpm", cache, share=True), 16)
    for serial, ids in enumerate([(7, 9, 1), (1, 2, 3, 4), (7, 8, 2), (1, 2, 3, 5), (5, 5, 5)]):
        queue.add(waiting_request(serial, ids))
    assert order(queue) == [0, 1, 2, 3, 4]
    fill(cache, [7, 8, 9])
    assert order(queue) == [2, 0, 1, 3, 4]
    fill(cache, [1, 2, 3])
    assert order(queue) == [1, 3, 2, 0, 4]
    cache.flush()
    assert order(queue) == [0, 1, 2, 3, 4]


def test_without_sharing_nothing_is_matched() -> None:
    cache = RadixCache(64)
    queue = WaitingQueue(line_maker("lpm", cache, share=False), 16)
    fill(cache, [1, 2])
    queue.add(waiting_request(0, (3, 3, 3)))
    queue.add(waiting_request(1, (1, 2, 3)))
    assert order(queue) == [0, 1]


def test_fcfs_is_the_order_of_arrival() -> None:
    queue = queue_of("fcfs")
    for serial in (3, 1, 4, 0, 2):
        queue.add(waiting_request(serial))
    assert order(queue) == [0, 1, 2, 3, 4]


def test_the_highest_priority_goes_first() -> None:
    queue = queue_of("priority", aging=False)
    for serial, priority in enumerate([0, 5, -3, 5, 2]):
        queue.add(waiting_request(serial, priority=priority))
    assert order(queue) == [1, 3, 4, 0, 2]


def test_programs_near_their_end_go_first_and_age() -> None:
    queue = queue_of("program", max_passes=2)
    for serial, stages in enumerate([4, 1, 3, 1]):
        queue.add(waiting_request(serial, stages_left=stages))
    assert order(queue) == [1, 3, 2, 0]
    admitted: list[int] = []
    while request := queue.next(()):
        queue.admitted(request)
        admitted.append(request.serial)
    assert admitted == [1, 3, 0, 2]  # two have passed number 0


@pytest.mark.parametrize("policy", ["lpm", "program"])
def test_a_request_is_passed_over_at_most_max_passes_times(policy: SchedulePolicy) -> None:
    """Against a stream of arrivals that the policy always prefers."""
    cache = RadixCache(64)
    queue = WaitingQueue(line_maker(policy, cache, share=True), 3)
    fill(cache, [1, 2])
    for serial in range(4):
        queue.add(waiting_request(serial, (9, 9, 9), stages_left=2))
    admitted: list[int] = []
    for serial in range(10, 40):
        queue.add(waiting_request(serial))
        first = queue.next(())
        assert first is not None
        queue.admitted(first)
        admitted.append(first.serial)
    assert admitted[:8] == [10, 11, 12, 0, 1, 2, 3, 13]


@given(
    arrivals=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=60),
    max_passes=st.integers(1, 4),
)
def test_no_order_of_arrivals_and_admissions_starves(
    arrivals: list[tuple[bool, int]], max_passes: int
) -> None:
    queue = queue_of("program", max_passes)
    passes = dict[int, int]()
    for serial, (admits, stages) in enumerate(arrivals):
        queue.add(waiting_request(serial, stages_left=stages))
        passes[serial] = 0
        if admits and (request := queue.next(())):
            queue.admitted(request)
            del passes[request.serial]
            for other in passes:
                passes[other] += other < request.serial
    assert all(n <= max_passes for n in passes.values())
    by_serial = {request.serial: request for request in queue}
    assert passes.keys() == by_serial.keys()
    assert all(queue.is_overdue(by_serial[s]) == (n == max_passes) for s, n in passes.items())


def test_tenants_take_turns_by_weight() -> None:
    """By what was computed for them; one that comes late has saved nothing up."""
    queue = queue_of("fcfs", weights={"a": 2.0, "*": 1.0})
    for serial in range(12):
        queue.add(waiting_request(serial, tenant="a" if serial < 6 else "b"))
    admitted: list[str] = []

    def admit(count: int) -> str:
        for _ in range(count):
            request = queue.next(())
            assert request is not None
            queue.admitted(request)
            queue.charge(request, 10)
            admitted.append(request.message.hints.tenant)
        return "".join(admitted)

    assert admit(6).count("a") == 4
    for serial in range(20, 26):
        queue.add(waiting_request(serial, tenant="c"))
    assert admit(6)[6:].count("c") in (2, 3)


def test_tenants_that_left_are_forgotten() -> None:
    queue = queue_of("fcfs", weights={})
    for serial in range(5000):
        request = waiting_request(serial, tenant=f"tenant {serial}")
        queue.add(request)
        queue.admitted(request)
        queue.charge(request, 5)
    assert len(queue._tenants) <= 1025  # pyright: ignore[reportPrivateUsage]


def test_the_cache_is_observed_only_while_somebody_waits() -> None:
    """A tenant that has left costs the changes of the tree nothing."""
    cache = RadixCache(64)
    queue = WaitingQueue(line_maker("lpm", cache, share=True), 4, weights={})
    observers = cache._observers  # pyright: ignore[reportPrivateUsage]
    for serial in range(40):
        queue.add(waiting_request(serial, tenant=f"tenant {serial}"))
    assert len(observers) == 40
    for request in list(queue)[:30]:
        queue.admitted(request)
    assert len(observers) == 10
    cache.reset(0)
    queue.restart(list(queue)[:3])
    assert len(observers) == 3


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


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("options", [{"max_running_requests": 2}, {"pool_tokens": 160}])
def test_a_much_higher_priority_takes_the_place_of_a_running_request(
    overlap: bool, options: dict[str, Any]
) -> None:
    """Whether rows or slots are short; the one that yields goes on later, with the same ids."""
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        overlap=overlap,
        policy="priority",
        preemption_gap=10,
        new_token_reserve=1.0,
        **options,
    )
    alone = harness.submit([2] * 30, rid="alone", max_new_tokens=40, temperature=0.0)
    harness.run()
    low = harness.submit([2] * 30, rid="low", max_new_tokens=40, temperature=0.0)
    middle = harness.submit(
        [3] * 30, rid="middle", hints=SchedulingHints(priority=5), max_new_tokens=40
    )
    for _ in range(8):
        harness.step()
    near = harness.submit(
        [4] * 30, rid="near", hints=SchedulingHints(priority=9), max_new_tokens=30
    )
    for _ in range(4):
        harness.step()
    assert not near.ids, "its priority is not that much higher"
    high = harness.submit(
        [5] * 30, rid="high", hints=SchedulingHints(priority=10), max_new_tokens=10
    )
    while not high.finals:
        harness.step()
    assert not low.finals and not middle.finals
    harness.run()
    assert low.usage.num_retractions == 1 and middle.usage.num_retractions == 0
    assert low.ids == alone.ids
    assert near.finish.kind == middle.finish.kind == "length"
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


def test_the_only_running_request_may_be_preempted_with_nothing_in_flight() -> None:
    """The urgent one takes its row in the same step: else nobody could be planned at all."""
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        overlap=False,
        policy="priority",
        preemption_gap=1,
        max_running_requests=1,
    )
    low = harness.submit([1, 2, 3], max_new_tokens=8)
    for _ in range(3):
        harness.step()
    urgent = harness.submit([4, 5], max_new_tokens=3, hints=SchedulingHints(priority=5))
    harness.run()
    assert low.finish.kind == urgent.finish.kind == "length"
    assert harness.scheduler.stats.num_retractions == 1
    harness.assert_drained()
    harness.close()
