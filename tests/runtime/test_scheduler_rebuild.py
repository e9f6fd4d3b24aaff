"""Books that were broken on purpose: those who hold something end, the server goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from espalier.radix.slots import SlotState
from espalier.runtime.config import SchedulePolicy
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.messages import Regex
from espalier.runtime.scheduler import audit
from espalier.runtime.scheduler.audit import IdleAudit
from espalier.runtime.scheduler.control import FlushCache, Shutdown
from espalier.runtime.scheduler.planner import Planner
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)

Harm = Callable[[Harness], None]


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 5 + i // 7 + salt) % 256 for i in range(length)]


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def build(**options: Any) -> Harness:
        options = {"overlap": request.param, "check_books": False, **options}
        harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), **options)
        harness.max_rebuilds = 1
        harnesses.append(harness)
        return harness

    yield build
    for harness in harnesses:
        harness.close()


def held_node(harness: Harness) -> Any:
    return next(node for node in harness.cache.tree.nodes() if node.lock_count)


def unlock_once_too_often(harness: Harness) -> None:
    for node in harness.cache.tree.nodes():
        node.lock_count = 0


def lose_the_free_slots(harness: Harness) -> None:
    harness.cache.pool.alloc(harness.cache.num_free // 2)


def free_what_is_cached(harness: Harness) -> None:
    for node in harness.cache.tree.nodes():
        harness.cache.pool.move(node.slots, SlotState.CACHED, SlotState.FREE)


def end_a_step_that_has_not_been(harness: Harness) -> None:
    harness.cache.last_step += 100


def cut_a_branch_off(harness: Harness) -> None:
    node = held_node(harness)
    del node.parent.children[int(node.key[0])]


def lose_a_path(harness: Harness) -> None:
    request = next(iter(harness.scheduler._roster.running))  # pyright: ignore[reportPrivateUsage]
    request.handle = None


def forget_a_running_request(harness: Harness) -> None:
    harness.scheduler._roster.running.pop()  # pyright: ignore[reportPrivateUsage]


AT_ONCE: list[Harm] = [unlock_once_too_often, end_a_step_that_has_not_been, lose_a_path]
IN_THE_QUIET: list[Harm] = [
    lose_the_free_slots,
    free_what_is_cached,
    cut_a_branch_off,
    forget_a_running_request,
]


@pytest.fixture
def no_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The books are recounted as soon as there is nothing to do."""
    monkeypatch.setattr(audit, "QUIET_S", 0.0)
    monkeypatch.setattr(audit, "INTERVAL_S", 0.0)


def run_to_the_end(harness: Harness, outcomes: list[Outcome]) -> None:
    for _ in range(2000):
        if all(o.finals for o in outcomes):
            break
        harness.step()
    while harness.step():
        pass


def recount(harness: Harness) -> None:
    for _ in harness.scheduler._holdings.recounting():  # pyright: ignore[reportPrivateUsage]
        pass


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("harm", AT_ONCE, ids=lambda harm: harm.__name__)
def test_broken_books_end_only_those_who_hold_something(
    make: Callable[..., Harness],
    caplog: pytest.LogCaptureFixture,
    policy: SchedulePolicy,
    harm: Harm,
) -> None:
    harness = make(policy=policy, max_running_requests=2, max_chunk_len=32)
    running, waiting = load(harness)
    harm(harness)
    with caplog.at_level(logging.CRITICAL):
        run_to_the_end(harness, running + waiting)
    assert harness.scheduler.stats.num_rebuilds == 1
    assert {o.finish.kind for o in running} <= {"error", "length"}
    errors = [o for o in running if o.finish.kind == "error"]
    assert errors and all(o.finish.lost for o in errors)
    assert "emptied its cache" in errors[0].finish.message
    assert "the books are wrong" in caplog.text and "slots 4096 =" in caplog.text
    assert [o.finish.kind for o in waiting] == ["length"] * 3
    clean = make(policy=policy)
    expected = [clean.submit([*prompt(60), 9, i], max_new_tokens=6) for i in range(3)]
    clean.run()
    assert [o.ids for o in waiting] == [o.ids for o in expected]
    assert_sound(harness)


@pytest.mark.usefixtures("no_quiet")
@pytest.mark.parametrize("harm", IN_THE_QUIET, ids=lambda harm: harm.__name__)
def test_what_no_request_runs_into_is_found_when_all_are_done(
    make: Callable[..., Harness], harm: Harm
) -> None:
    harness = make(max_running_requests=2, max_chunk_len=32)
    running, waiting = load(harness)
    harm(harness)
    run_to_the_end(harness, running + waiting)
    assert harness.scheduler.stats.num_rebuilds == 1
    assert all(len(o.finals) == 1 for o in running + waiting)
    assert [o.finish.kind for o in waiting] == ["length"] * 3
    later = harness.submit(prompt(60), max_new_tokens=5)
    harness.run()
    assert later.finish.kind == "length"
    assert_sound(harness)


def load(harness: Harness) -> tuple[list[Outcome], list[Outcome]]:
    """Two requests that decode and, as there are but two rows, three that wait."""
    shared = prompt(60)
    running = [harness.submit([*shared, i], max_new_tokens=20 + 10 * i) for i in range(2)]
    waiting = [harness.submit([*shared, 9, i], max_new_tokens=6) for i in range(3)]
    for _ in range(6):
        harness.step()
    assert not any(o.finals for o in running + waiting)
    return running, waiting


def assert_sound(harness: Harness) -> None:
    """The books are right, and nothing is held by anybody."""
    recount(harness)
    reply: Future[int] = Future()
    harness.scheduler.inbox.put(FlushCache(reply))
    harness.step()
    assert reply.result() > 0 and harness.cache.num_free == harness.cache.num_slots


@pytest.mark.parametrize("how", ["abort", "shutdown"])
def test_who_is_aborted_hears_that_though_the_books_are_wrong(
    make: Callable[..., Harness], how: str
) -> None:
    """The first of them to be taken back finds it; the others must not be forgotten."""
    harness = make(max_running_requests=2)
    harness.submit(prompt(40), rid="x", choices=4, max_new_tokens=20)
    other = harness.submit(prompt(40), rid="y", max_new_tokens=5)
    for _ in range(3):
        harness.step()
    lose_a_path(harness)
    harness.abort("x") if how == "abort" else harness.scheduler.inbox.put(Shutdown())
    harness.run()
    kinds = [o.finish.kind for key, o in harness.outcomes.items() if key[0] == "x"]
    assert kinds == ["abort"] * 4
    assert other.finish.kind == ("length" if how == "abort" else "abort")
    recount(harness)


def test_a_request_that_breaks_the_books_whenever_it_is_planned_does_not_block_the_others(
    make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    harness.max_rebuilds = 2
    plan = Planner.plan

    def broken(self: Planner, number: int, running: Any, waiting: Any) -> Any:
        for request in (*running, *waiting):
            assert request.message.rid != "poison", "this one breaks everything"
        return plan(self, number, running, waiting)

    monkeypatch.setattr(Planner, "plan", broken)
    poison = harness.submit(prompt(10), rid="poison", max_new_tokens=5)
    for _ in range(2):
        harness.step()
    assert poison.finish.kind == "error" and "breaks everything" in poison.finish.message
    later = harness.submit(prompt(10), max_new_tokens=5)
    harness.run()
    assert later.finish.kind == "length"


def test_what_is_never_right_ends_the_loop(
    make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends, and the launcher starts another."""
    harness = make()
    harness.max_rebuilds = 2

    def broken(*_: object) -> None:
        raise AssertionError("never right")

    monkeypatch.setattr(Planner, "plan", broken)
    outcome = harness.submit(prompt(10), max_new_tokens=5)
    for _ in range(2):
        harness.step()
    assert outcome.finish.kind == "error"
    harness.submit(prompt(10), max_new_tokens=5)
    with pytest.raises(AssertionError, match="never right"):
        harness.step()


def test_the_log_is_bounded(make: Callable[..., Harness], caplog: pytest.LogCaptureFixture) -> None:
    harness = make(pool_tokens=8192)
    for start in range(0, 250, 10):
        for index in range(12):
            harness.submit([start, index, *range(start % 7)], max_new_tokens=1)
        harness.run()
    outcomes = [harness.submit(prompt(40), max_new_tokens=n) for n in (10, 20)]
    for _ in range(3):
        harness.step()
    lose_a_path(harness)
    with caplog.at_level(logging.CRITICAL):
        run_to_the_end(harness, outcomes)
    assert outcomes[1].finish.kind == "error"
    assert harness.scheduler.stats.num_rebuilds == 1
    assert 200 < len(caplog.records[-1].getMessage().splitlines()) < 220


def test_a_cycle_in_the_tree_does_not_hang_the_report(make: Callable[..., Harness]) -> None:
    harness = make()
    outcomes = [harness.submit(prompt(40), max_new_tokens=n) for n in (10, 20)]
    for _ in range(3):
        harness.step()
    node = held_node(harness)
    node.children[-1] = node
    lose_a_path(harness)
    run_to_the_end(harness, outcomes)
    assert outcomes[1].finish.kind == "error"
    recount(harness)


# -- in the quiet --------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_recount_comes_once_after_work_and_not_too_often() -> None:
    clock = Clock()
    counted: list[int] = []

    def recount() -> Iterator[None]:
        for piece in range(3):
            counted.append(piece)
            yield

    audit_ = IdleAudit(recount, clock)
    assert audit_.wait_s() is None
    audit_.disturb()
    assert audit_.wait_s() == audit.QUIET_S
    clock.now += audit.QUIET_S
    while audit_.wait_s() == 0.0:
        audit_.go_on()
    assert counted == [0, 1, 2] and audit_.wait_s() is None
    audit_.disturb()
    assert audit_.wait_s() == audit.INTERVAL_S


def test_a_disturbed_recount_begins_anew() -> None:
    clock = Clock()
    counted: list[int] = []

    def recount() -> Iterator[None]:
        for piece in range(3):
            counted.append(piece)
            yield

    audit_ = IdleAudit(recount, clock)
    audit_.disturb()
    clock.now += audit.QUIET_S
    audit_.go_on()
    audit_.disturb()
    assert audit_.wait_s() == audit.QUIET_S
    clock.now += audit.QUIET_S
    while audit_.wait_s() == 0.0:
        audit_.go_on()
    assert counted == [0, 0, 1, 2]


def leak_a_lock(harness: Harness) -> None:
    harness.cache.lock(harness.cache.match_prefix((), np.array(prompt(30), np.int32)))


def leak_slots(harness: Harness) -> None:
    harness.cache.alloc(3)


def miscount(harness: Harness) -> None:
    harness.cache._num_evictable -= 1  # pyright: ignore[reportPrivateUsage]


def leak_a_row(harness: Harness) -> None:
    harness.scheduler._holdings._free_rows.pop()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.usefixtures("no_quiet")
@pytest.mark.parametrize("harm", [leak_a_lock, leak_slots, miscount, leak_a_row])
def test_what_has_leaked_is_found_in_the_quiet(make: Callable[..., Harness], harm: Harm) -> None:
    harness = make()
    harness.submit(prompt(30), max_new_tokens=5)
    harness.run()
    harm(harness)
    harness.abort("nobody")  # after which it is quiet again
    harness.step()
    assert harness.scheduler.stats.num_rebuilds == 1
    assert harness.cache.num_free == harness.cache.num_slots
    again = harness.submit(prompt(30), max_new_tokens=5)
    harness.run()
    assert again.finish.kind == "length"
    recount(harness)


def test_a_request_whose_guide_cannot_be_made_ends_and_the_others_go_on(
    make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no line at that moment: not among those that compile, nor those that wait."""

    def broken(_: CompiledGrammar) -> None:
        raise AssertionError("no guide")

    monkeypatch.setattr(CompiledGrammar, "guide", broken)
    harness = make()
    constrained = harness.submit(prompt(30), max_new_tokens=5, constraint=Regex("x+"))
    other = harness.submit(prompt(30, salt=1), max_new_tokens=5)
    for _ in range(2000):
        harness.step()
        if constrained.finals and other.finals:
            break
    assert "no guide" in constrained.finish.message
    assert other.finish.kind in ("error", "length")
    assert_sound(harness)
