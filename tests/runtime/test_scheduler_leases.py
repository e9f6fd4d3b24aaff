"""Leases of ended requests: how long they keep a path, and to whom they yield."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from espalier.runtime.messages import SchedulingHints
from espalier.runtime.scheduler.control import FlushCache, ReportStats, Shutdown
from espalier.runtime.scheduler.stats import SchedulerStats
from tests.fakes import ManualClock, byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.runtime.test_scheduler_faults import (
    BAD_TOKEN,
    FailingRunner,
    prompt,
    weights_with_a_bad_token,
)

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
DEADLINE_S = 30.0

Make = Callable[..., Harness]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def make(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Make]:
    harnesses: list[Harness] = []

    def build(**options: Any) -> Harness:
        options = {"overlap": request.param, "clock": clock, "weights": WEIGHTS, **options}
        weights = options.pop("weights")
        harnesses.append(Harness(CONFIG, weights, byte_vocabulary(), **options))
        return harnesses[-1]

    yield build
    for harness in harnesses:
        harness.close()


def submit(harness: Harness, ids: list[int], lease_s: float = 10.0, **options: Any) -> Outcome:
    options = {"max_new_tokens": 5, "hints": SchedulingHints(lease_s=lease_s), **options}
    return harness.submit(ids, **options)


def reported(harness: Harness) -> SchedulerStats:
    """The stats as a client asks for them, of a scheduler that may be idle."""
    answers: list[SchedulerStats] = []
    harness.scheduler.inbox.put(ReportStats(answers.append))
    harness.step()
    return answers[0]


def test_a_path_is_kept_for_its_time_and_counted_right_without_traffic(
    make: Make, clock: ManualClock
) -> None:
    harness = make(pool_tokens=200, max_leased_share=0.5)
    leased = submit(harness, prompt(30))
    harness.run()
    held = 30 + 5 - 1  # the last token's KV is never computed
    stats = reported(harness)
    assert stats.leased_tokens == stats.yieldable_tokens == held
    for salt in range(100, 108):
        harness.submit(prompt(100, salt=salt), max_new_tokens=5)
        harness.run()
    again = harness.submit([*prompt(30), *leased.ids], max_new_tokens=1)
    harness.run()
    assert again.usage.cached_tokens == held
    clock.now += 10
    stats = reported(harness)
    assert stats.leased_tokens == stats.yieldable_tokens == 0
    harness.assert_drained()


def test_no_request_goes_without_slots_or_is_retracted_for_a_lease(make: Make) -> None:
    harness = make(pool_tokens=100, max_leased_share=1.0, new_token_reserve=0.0)
    for salt in range(3):
        submit(harness, prompt(25, salt=salt * 50), lease_s=10.0 + salt)
        harness.run()
    assert harness.cache.num_leased == 3 * 29
    running = harness.submit(prompt(30, salt=200), max_new_tokens=60)
    harness.run()
    assert running.usage.num_retractions == 0 and len(running.ids) == 60
    assert harness.cache.num_leased == 0, "89 slots can't be had beside a lease"
    harness.assert_drained()


def test_leases_yield_one_by_one(make: Make) -> None:
    harness = make(pool_tokens=100, max_leased_share=1.0)
    for salt in range(3):
        submit(harness, prompt(25, salt=salt * 50), lease_s=10.0 - salt)
        harness.run()
    harness.submit(prompt(30, salt=200), max_new_tokens=5)
    harness.run()
    assert harness.cache.num_leased == 2 * 29
    kept = harness.submit(prompt(25), max_new_tokens=1)
    harness.run()
    assert kept.usage.cached_tokens == 24
    harness.assert_drained()


def test_a_request_that_waits_for_others_takes_nothing_from_leases(make: Make) -> None:
    harness = make(pool_tokens=100, max_leased_share=1.0, new_token_reserve=1.0)
    submit(harness, prompt(20), lease_s=10.0)
    harness.run()
    first = harness.submit(prompt(30, salt=70), max_new_tokens=30)
    while not first.ids:
        harness.step()
    second = harness.submit(prompt(60, salt=90), max_new_tokens=5)
    harness.step()
    assert harness.cache.num_leased == 24 and not first.finals
    harness.run()
    assert len(second.ids) == 5
    harness.assert_drained()


def test_leases_stay_within_their_share(make: Make) -> None:
    harness = make(pool_tokens=400, max_leased_share=0.1)
    too_long = submit(harness, prompt(60))
    harness.run()
    assert too_long.finish.kind == "length" and harness.cache.num_leased == 0
    submit(harness, prompt(20, salt=50), lease_s=5.0)
    submit(harness, prompt(20, salt=90), lease_s=9.0)
    harness.run()
    assert harness.cache.num_leased == 24
    off = make(max_leased_share=0.0)
    submit(off, prompt(20))
    off.run()
    assert off.cache.num_leased == 0


def test_only_a_good_end_leases(make: Make) -> None:
    harness = make(max_leased_share=1.0)
    aborted = submit(harness, prompt(30), rid="aborted", max_new_tokens=50)
    while len(aborted.ids) < 3:
        harness.step()
    harness.abort("aborted")
    harness.run()
    assert aborted.finish.kind == "abort" and harness.cache.num_leased == 0
    stopped = submit(harness, prompt(30), stop_token_ids=(aborted.ids[1],))
    harness.run()
    assert stopped.finish.kind == "stop" and harness.cache.num_leased == 31
    harness.abort(stopped.request.rid)
    harness.step()
    assert harness.cache.num_leased == 31, "it had ended"


def test_a_retracted_request_leases_at_its_end_only(make: Make) -> None:
    harness = make(pool_tokens=100, max_leased_share=1.0, new_token_reserve=0.0)
    first = submit(harness, prompt(30), max_new_tokens=50)
    second = submit(harness, prompt(30, salt=90), max_new_tokens=50)
    while not first.finals:
        harness.step()
    assert harness.scheduler.stats.num_retractions > 0 and not second.finals
    assert len(harness.scheduler.leases) <= 1
    harness.run()
    assert 79 <= harness.cache.num_leased <= 100
    harness.assert_drained()


def test_a_flush_forgets_what_is_leased(make: Make) -> None:
    harness = make(max_leased_share=1.0)
    submit(harness, prompt(30))
    harness.run()
    flushed: Future[int] = Future()
    harness.scheduler.inbox.put(FlushCache(flushed))
    harness.step()
    assert flushed.result() == 34 and harness.cache.num_cached == 0


@pytest.mark.parametrize("number", range(4, 20))
def test_failed_steps_leave_the_books_right(make: Make, number: int) -> None:
    """Whoever ends while others compute the same tokens leases nodes that are not settled."""
    lone = make()
    tail = lone.submit(prompt(40), max_new_tokens=8)
    lone.run()
    harness = make(max_leased_share=1.0, max_chunk_len=8, max_step_tokens=16)
    harness.wrap_runner(FailingRunner(harness.runner, at=number))
    outcomes = [submit(harness, prompt(40), max_new_tokens=8)]
    while not outcomes[0].ids:
        harness.step()
    for extra in range(4):
        outcomes.append(submit(harness, [*prompt(40), *tail.ids, extra], max_new_tokens=3))
        harness.step()
    harness.run()
    assert all(outcome.finish.kind == "length" for outcome in outcomes)
    assert harness.cache.num_leased >= 47
    harness.assert_drained()


def test_poisoned_nodes_are_not_leased_any_more(make: Make) -> None:
    harness = make(max_leased_share=1.0, weights=weights_with_a_bad_token())
    good = prompt(30)
    submit(harness, good)
    submit(harness, prompt(20, salt=90))
    harness.run()
    assert harness.cache.num_leased == 34 + 24
    bad = submit(harness, [*good, BAD_TOKEN, 1])
    harness.run()
    assert bad.finish.kind == "error"
    assert harness.cache.num_leased == 24, "the first path is poisoned, the second is not"
    harness.assert_drained()


def test_an_idle_loop_wakes_up_when_a_lease_expires() -> None:
    """By the real clock, which is asked again in time though nothing is sent."""
    lease_s, taken = 0.05, 0.0
    due = threading.Event()

    def now() -> float:
        nonlocal taken
        at = time.monotonic()
        if not harness.cache.num_leased:
            taken = at
        elif at >= taken + lease_s:
            due.set()
        return at

    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), check_books=False, clock=now)
    submit(harness, prompt(30), lease_s=lease_s)
    loop = threading.Thread(target=harness.scheduler.run)
    loop.start()
    try:
        assert due.wait(DEADLINE_S)
    finally:
        harness.scheduler.inbox.put(Shutdown())
        loop.join()
        harness.close()
    assert harness.scheduler.stats.leased_tokens == 0
