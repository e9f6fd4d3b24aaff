"""Steps that fail, logits that are NaN, aborts in every phase: one final message, exact books."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch

from espalier.runtime.messages import AbortRequest
from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.runner.torch_runner import TorchRunner
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.step import Step, StepResult
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


class FailingRunner:
    """Raises from the results of step number `at`, or from the `first` results of all."""

    def __init__(self, inner: Runner, *, at: int = -1, first: int = 0) -> None:
        self._inner = inner
        self._at = at
        self._left = first

    def launch(self, step: Step) -> LaunchedStep:
        return _FailingStep(self._inner.launch(step), self)

    def fails(self, number: int) -> bool:
        self._left -= 1
        return number == self._at or self._left >= 0

    def close(self) -> None:
        self._inner.close()


class _FailingStep:
    def __init__(self, inner: LaunchedStep, runner: FailingRunner) -> None:
        self._inner = inner
        self._runner = runner
        self.step = inner.step

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        self._inner.sample(rows)

    def result(self) -> StepResult:
        result = self._inner.result()
        if self._runner.fails(self.step.number):
            raise RuntimeError("the device is on fire")
        return result

    def discard(self) -> None:
        self._inner.discard()


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 5 + i // 7 + salt) % 256 for i in range(length)]


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def build(fail: dict[str, int] | None = None, **options: object) -> Harness:
        harness = Harness(
            CONFIG, WEIGHTS, byte_vocabulary(), **{"overlap": request.param, **options}
        )
        if fail:
            harness.wrap_runner(FailingRunner(harness.runner, **fail))
        harnesses.append(harness)
        return harness

    yield build
    for harness in harnesses:
        harness.close()


def mixed_load(harness: Harness) -> list[Outcome]:
    shared = prompt(90)
    return [
        harness.submit([*shared, 1], max_new_tokens=12),
        harness.submit([*shared, 2], max_new_tokens=9),
        harness.submit(shared[:60], max_new_tokens=15),
        harness.submit(prompt(40, salt=50), max_new_tokens=6),
        harness.submit(shared, max_new_tokens=7, temperature=1.0, seed=3),
    ]


@pytest.mark.parametrize("number", range(14))
def test_a_failed_step_is_retried_and_changes_nothing(
    make: Callable[..., Harness], number: int
) -> None:
    expected = [o.ids for o in _run_all(make(max_chunk_len=32))]
    harness = make({"at": number}, max_chunk_len=32)
    outcomes = _run_all(harness)
    assert harness.scheduler.stats.num_failed_steps == 1
    assert [o.ids for o in outcomes] == expected
    assert all(o.finish.kind == "length" for o in outcomes)
    harness.assert_drained()


def _run_all(harness: Harness) -> list[Outcome]:
    outcomes = mixed_load(harness)
    harness.run()
    return outcomes


def test_a_request_whose_step_fails_twice_ends_with_the_error(
    make: Callable[..., Harness],
) -> None:
    harness = make({"first": 2})
    failed = harness.submit(prompt(50), max_new_tokens=5)
    harness.run()
    assert failed.finish.kind == "error"
    assert "on fire" in failed.finish.message
    harness.assert_drained()
    assert harness.cache.num_cached == 0, "a promise that was never kept stayed in the tree"


def test_everything_else_goes_on_after_a_failure(make: Callable[..., Harness]) -> None:
    harness = make({"first": 2})
    first = harness.submit(prompt(50), max_new_tokens=5)
    while not first.finals:
        harness.step()
    later = harness.submit(prompt(50), max_new_tokens=5)
    harness.run()
    assert first.finish.kind == "error"
    assert later.finish.kind == "length"


def test_a_failed_step_withdraws_what_it_promised(make: Callable[..., Harness]) -> None:
    harness = make({"at": 0})
    a = harness.submit(prompt(100), max_new_tokens=3)
    b = harness.submit(prompt(100), max_new_tokens=3)  # rides on the promise of `a`
    harness.run()
    clean = make()
    expected = clean.submit(prompt(100), max_new_tokens=3)
    clean.run()
    assert a.ids == b.ids == expected.ids
    harness.assert_drained()


def test_nan_ends_its_request_and_nobody_else(make: Callable[..., Harness]) -> None:
    harness = make()
    poisoned = harness.submit(prompt(30), rid="poisoned", max_new_tokens=40)
    healthy = harness.submit(prompt(30, salt=77), max_new_tokens=40)
    for _ in range(6):
        harness.step()
    _poison(harness.torch_runner, harness)
    harness.run()
    assert poisoned.finish.kind == "error" and "NaN" in poisoned.finish.message
    assert healthy.finish.kind == "length" and len(healthy.ids) == 40
    harness.assert_drained()
    retry = harness.submit(prompt(30), max_new_tokens=4)
    harness.run()
    assert retry.usage.cached_tokens == 0, "poisoned KV was still in the cache"
    assert retry.finish.kind == "length"
    assert retry.ids == poisoned.ids[:4]


def _poison(runner: TorchRunner, harness: Harness) -> None:
    """Overwrite the KV of the first request's prompt with NaN, as a broken device would."""
    ids = torch.tensor(prompt(30), dtype=torch.int32).numpy()
    slots = harness.cache.slots_of(harness.cache.match_prefix((), ids))
    runner.submit(lambda: _fill_with_nan(runner, slots.tolist())).result()


def _fill_with_nan(runner: TorchRunner, slots: list[int]) -> None:
    runner.pool.v_LSKd[:, slots] = float("nan")


def test_a_sharer_of_poisoned_kv_starts_over(make: Callable[..., Harness]) -> None:
    """NaN in one request's suffix takes its path away from the others, who recompute it."""
    harness = make()
    poisoned = harness.submit([*prompt(30), 1], max_new_tokens=30)
    sharer = harness.submit([*prompt(30), 2], max_new_tokens=30)
    for _ in range(4):
        harness.step()
    ids = torch.tensor([*prompt(30), 1], dtype=torch.int32).numpy()
    slot = int(harness.cache.slots_of(harness.cache.match_prefix((), ids))[-1])
    harness.torch_runner.submit(lambda: _fill_with_nan(harness.torch_runner, [slot])).result()
    harness.run()
    assert poisoned.finish.kind == "error"
    clean = make()
    expected = clean.submit([*prompt(30), 2], max_new_tokens=30)
    clean.run()
    assert sharer.ids == expected.ids
    harness.assert_drained()


@pytest.mark.parametrize("when", range(14))
def test_an_abort_in_any_step_ends_exactly_that_request(
    make: Callable[..., Harness], when: int
) -> None:
    harness = make(max_chunk_len=16)
    victim = harness.submit(prompt(80), rid="req-1", max_new_tokens=8)
    other = harness.submit(prompt(80), rid="req-10", max_new_tokens=8)
    for _ in range(when):
        harness.step()
    harness.abort("req-1")
    harness.abort("req-1")
    harness.run()
    assert len(victim.finals) == 1
    assert victim.finish.kind in ("abort", "length")
    assert other.finish.kind == "length" and len(other.ids) == 8
    harness.assert_drained()


def test_an_abort_of_an_unknown_id_does_nothing(make: Callable[..., Harness]) -> None:
    harness = make()
    harness.scheduler.inbox.put(AbortRequest("nobody"))
    outcome = harness.submit(prompt(10), max_new_tokens=2)
    harness.run()
    assert outcome.finish.kind == "length"


def test_an_aborted_prompt_keeps_what_it_has_computed(make: Callable[..., Harness]) -> None:
    harness = make(max_chunk_len=16)
    harness.submit(prompt(80), rid="gone", max_new_tokens=8)
    for _ in range(3):
        harness.step()
    harness.abort("gone")
    harness.run()
    again = harness.submit(prompt(80), max_new_tokens=1)
    harness.run()
    assert again.usage.cached_tokens >= 32
