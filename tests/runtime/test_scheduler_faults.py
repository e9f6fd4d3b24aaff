"""Steps that fail, logits that are NaN, aborts in every phase: one final message, exact books."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from espalier.runtime.messages import AbortRequest, LogprobOptions
from espalier.runtime.models.weights import LlamaWeights
from espalier.runtime.runner.build import AnyBackend
from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.step import Step, StepResult
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.native_kernels import KERNELS, held_by
from tests.steps import ChangedStep

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


class FailingRunner:
    """Raises from the results of step number `at`, or from the `first` results of all."""

    def __init__(self, inner: Runner, *, at: int = -1, first: int = 0) -> None:
        self._inner = inner
        self._at = at
        self._left = first

    def launch(self, step: Step) -> LaunchedStep:
        return ChangedStep(
            self._inner.launch(step), lambda result: self._or_fail(step.number, result)
        )

    def _or_fail(self, number: int, result: StepResult) -> StepResult:
        if self.fails(number):
            raise RuntimeError("the device is on fire")
        return result

    def fails(self, number: int) -> bool:
        self._left -= 1
        return number == self._at or self._left >= 0

    def close(self) -> None:
        self._inner.close()


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 5 + i // 7 + salt) % 256 for i in range(length)]


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=KERNELS)
def make(request: pytest.FixtureRequest, overlap: bool) -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def build(
        fail: dict[str, int] | None = None, weights: LlamaWeights[Tensor] = WEIGHTS, **options: Any
    ) -> Harness:
        options = {"overlap": overlap, **options}
        held = held_by(request.param, weights, CONFIG)
        harness = Harness(CONFIG, held, byte_vocabulary(), **options)
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


def test_kv_that_went_bad_once_is_computed_again(make: Callable[..., Harness]) -> None:
    """NaN in cached KV, as a broken device would leave it: everybody who relied on it starts
    over, gets the same tokens, and nothing bad stays in the cache."""
    harness = make()
    outcomes = [
        harness.submit(prompt(30), max_new_tokens=40),
        harness.submit([*prompt(30), 2], max_new_tokens=30),
        harness.submit(prompt(30, salt=77), max_new_tokens=40),
    ]
    for _ in range(6):
        harness.step()
    _poison(harness)
    harness.run()
    clean = make()
    expected = [
        clean.submit(prompt(30), max_new_tokens=40),
        clean.submit([*prompt(30), 2], max_new_tokens=30),
        clean.submit(prompt(30, salt=77), max_new_tokens=40),
    ]
    clean.run()
    assert [o.ids for o in outcomes] == [o.ids for o in expected]
    harness.assert_drained()
    later = harness.submit([*prompt(30), 5], max_new_tokens=4)
    harness.run()
    assert later.finish.kind == "length"


def _poison(harness: Harness) -> None:
    """Overwrite the KV of a shared prompt with NaN."""
    ids = np.array(prompt(30), np.int32)
    slots = harness.cache.slots_of(harness.cache.match_prefix((), ids)).tolist()
    values = harness.kv_pool.v_LSKd

    def overwrite() -> None:
        values[:, slots] = float("nan")

    harness.device.submit(overwrite).result()


BAD_TOKEN = 7


def weights_with_a_bad_token() -> LlamaWeights[Tensor]:
    """Whoever reads BAD_TOKEN gets NaN logits, always."""
    embed = WEIGHTS.embed_VD.clone()
    embed[BAD_TOKEN] = float("nan")
    return replace(WEIGHTS, embed_VD=embed)


@pytest.mark.parametrize("apart", [0, 4])
def test_a_request_that_always_gives_nan_ends_alone(
    make: Callable[..., Harness], apart: int
) -> None:
    """Also when others share its good prefix, computed by it in the same step."""
    shared = [20 + i for i in range(40)]
    ban = {BAD_TOKEN: -100.0}
    harness = make(weights=weights_with_a_bad_token())
    bad = harness.submit([*shared, BAD_TOKEN, 1], max_new_tokens=4)
    for _ in range(apart):
        harness.step()
    good = harness.submit([*shared, 9], max_new_tokens=12, logit_bias=ban)
    harness.run()
    assert bad.finish.kind == "error" and "NaN" in bad.finish.message
    clean = make()
    expected = clean.submit([*shared, 9], max_new_tokens=12, logit_bias=ban)
    clean.run()
    assert good.ids == expected.ids
    harness.assert_drained()
    later = harness.submit([*shared, 9], max_new_tokens=3, logit_bias=ban)
    harness.run()
    assert later.ids == expected.ids[:3]


def test_scores_that_are_nan_are_an_error(make: Callable[..., Harness]) -> None:
    harness = make(weights=weights_with_a_bad_token())
    scored = harness.submit(
        [1, 2, BAD_TOKEN, 3, 4],
        max_new_tokens=0,
        logprobs=LogprobOptions(output=False, prompt_start=1),
    )
    harness.run()
    assert scored.finish.kind == "error"
    harness.assert_drained()


def test_sharers_of_a_bad_path_compute_it_again_once(make: Callable[..., Harness]) -> None:
    """One of nine gives NaN: the others recompute their prefix together, not each for itself."""
    harness = make(weights=weights_with_a_bad_token())
    shared = [8 + i % 200 for i in range(200)]
    for index in range(8):
        harness.submit([*shared, 20 + index], max_new_tokens=40, logit_bias={BAD_TOKEN: -100.0})
    for _ in range(6):
        harness.step()
    before = harness.scheduler.stats.num_computed_tokens
    harness.submit([*shared, BAD_TOKEN], max_new_tokens=2)
    for _ in range(20):
        harness.step()
    assert harness.scheduler.stats.num_computed_tokens - before < 900
    harness.run()
    harness.assert_drained()


def test_tokens_of_a_withdrawn_promise_do_not_count_as_cached() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary())
    harness.wrap_runner(FailingRunner(harness.runner, at=0))
    gone = harness.submit([*prompt(100), 1], rid="gone", max_new_tokens=2)
    sharer = harness.submit([*prompt(100), 2], max_new_tokens=2)
    harness.step()
    harness.abort("gone")
    harness.run()
    assert gone.finish.kind == "abort"
    assert sharer.usage.cached_tokens == 0
    harness.close()


class FailingBackend:
    """Fails forward number `at`, before any of the step's table writes is applied."""

    def __init__(self, inner: AnyBackend, at: int) -> None:
        self._inner = inner
        self._left = at

    def prepare(self, step: Step) -> object:
        return self._inner.prepare(step)

    def forward(self, prepared: object) -> object:
        self._left -= 1
        if self._left == -1:
            raise RuntimeError("the tables are on fire")
        return self._inner.forward(prepared)

    def sample(self, forward: object, rows: Mapping[int, SampleRow]) -> StepResult:
        return self._inner.sample(forward, rows)

    def use_idle_time(self) -> bool:
        return self._inner.use_idle_time()


@pytest.mark.parametrize("at", range(8))
def test_a_step_that_fails_before_its_table_writes(make: Callable[..., Harness], at: int) -> None:
    """Its successor, launched already, must not run on the tables as they are then."""
    expected = _staggered(make(max_chunk_len=32))
    harness = make(max_chunk_len=32, backend_of=partial(FailingBackend, at=at))
    assert _staggered(harness) == expected
    assert harness.scheduler.stats.num_failed_steps == 1
    harness.assert_drained()


def _staggered(harness: Harness) -> list[list[int]]:
    outcomes = [
        harness.submit([*prompt(90), 1], max_new_tokens=6),
        harness.submit([*prompt(50), 9], max_new_tokens=6),
    ]
    for _ in range(2):
        harness.step()
    outcomes.append(harness.submit([*prompt(90), 2], max_new_tokens=5))
    harness.run()
    return [outcome.ids for outcome in outcomes]


def test_table_writes_of_a_plan_without_rows_are_not_lost() -> None:
    """A request matches deeper, then finds no slot while nobody else has anything to do."""

    def run(pool_tokens: int) -> list[list[int]]:
        harness = Harness(
            CONFIG,
            WEIGHTS,
            byte_vocabulary(),
            pool_tokens=pool_tokens,
            max_chunk_len=1,
            new_token_reserve=0.0,
        )
        outcomes = [harness.submit([200 + i], max_new_tokens=9) for i in range(4)]
        equal = [(i * 5 + 3) % 256 for i in range(24)]
        outcomes += [harness.submit(equal, max_new_tokens=2) for _ in range(2)]
        harness.run()
        harness.close()
        return [outcome.ids for outcome in outcomes]

    expected = run(4096)
    for pool_tokens in range(40, 70):
        assert run(pool_tokens) == expected, pool_tokens


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
