"""Steps that fail between two layers, when a part of their KV is written already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from torch import Tensor

from espalier.kernels.plan import Plan
from espalier.kernels.recorder import Attention, Recorder
from espalier.runtime.models.weights import LayerWeights, LlamaWeights
from espalier.runtime.runner.build import AnyBackend
from espalier.runtime.runner.native_backend import NativeBackend, NativeStep
from espalier.runtime.sampling.sampler import SampleRow
from espalier.runtime.scheduler.step import Step, StepResult
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.native_kernels import held_by, needs_native

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
BOUNDARIES = range(CONFIG.num_layers + 1)  # before layer 0, between two, after the last
IN_SAMPLING = "sampling"


class Fault:
    """Strikes step `at` and, `times` in all, those that follow it."""

    def __init__(self, at: int, times: int) -> None:
        self._at, self._left = at, times
        self.step = -1  # the one that is computed now

    def strikes(self) -> bool:
        if self._left == 0 or self.step < self._at:
            return False
        self._left -= 1
        return True


class TrippingLayers(tuple[LayerWeights[Tensor], ...]):
    """Layers of which the model gets no further than `boundary` when the fault strikes."""

    fault: Fault
    boundary: int

    def __iter__(self) -> Iterator[LayerWeights[Tensor]]:
        strikes = self.fault.strikes()
        for index, layer in enumerate(super().__iter__()):
            if strikes and index == self.boundary:
                raise RuntimeError("a layer is on fire")
            yield layer
        if strikes:
            raise RuntimeError("a layer is on fire")


class Watched:
    """Tells the fault which step it is, and fails in sampling, if that is where it strikes."""

    def __init__(self, inner: AnyBackend, fault: Fault, *, in_sampling: bool = False) -> None:
        self._inner, self._fault, self._in_sampling = inner, fault, in_sampling
        self._steps: dict[int, Step] = {}

    def prepare(self, step: Step) -> object:
        return step, self._inner.prepare(step)

    def forward(self, prepared: object) -> object:
        step, inner = cast(tuple[Step, object], prepared)
        self._fault.step = step.number
        return step, self._inner.forward(inner)

    def sample(self, forward: object, rows: Mapping[int, SampleRow]) -> StepResult:
        step, inner = cast(tuple[Step, object], forward)
        self._fault.step = step.number
        if self._in_sampling and self._fault.strikes():
            raise RuntimeError("the sampler is on fire")
        return self._inner.sample(inner, rows)

    def use_idle_time(self) -> bool:
        return self._inner.use_idle_time()


class CutShort:
    """Runs only the first operations of the plan, up to a layer's boundary, and fails."""

    def __init__(self, inner: AnyBackend, fault: Fault, boundary: int) -> None:
        native = cast(object, inner)
        assert isinstance(native, NativeBackend)
        self._inner = native
        self._fault = fault
        plan = native.plan
        ops = plan._ops  # pyright: ignore[reportPrivateUsage]
        ends = [0] + [i + 4 for i, op in enumerate(ops) if isinstance(op, Attention)]
        recorder = Recorder(plan._heads)  # pyright: ignore[reportPrivateUsage]
        recorder.ops.extend(ops[: max(1, ends[boundary])])
        self._cut = Plan(
            recorder,
            plan._pool,  # pyright: ignore[reportPrivateUsage]
            plan._memory,  # pyright: ignore[reportPrivateUsage]
            max_tokens=plan._max_tokens,  # pyright: ignore[reportPrivateUsage]
            max_selected=plan._max_selected,  # pyright: ignore[reportPrivateUsage]
            keep=(),
        )

    def prepare(self, step: Step) -> object:
        return self._inner.prepare(step)

    def forward(self, prepared: object) -> object:
        step = cast(NativeStep, prepared)
        self._fault.step = step.step.number
        if self._fault.strikes():
            self._cut.run_prepared(step.prepared)
            raise RuntimeError("a layer is on fire")
        return self._inner.forward(step)

    def sample(self, forward: object, rows: Mapping[int, SampleRow]) -> StepResult:
        return self._inner.sample(cast(Any, forward), rows)

    def use_idle_time(self) -> bool:
        return self._inner.use_idle_time()


Wrap = Callable[[AnyBackend], AnyBackend]
Make = Callable[[Fault, int | str], Harness]


@pytest.fixture(params=["torch", pytest.param("float32", marks=needs_native)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    harnesses: list[Harness] = []

    def build(fault: Fault, where: int | str) -> Harness:
        weights: LlamaWeights[Tensor] = WEIGHTS
        if where == IN_SAMPLING:
            held = held_by(request.param, weights, CONFIG)
            wrap: Wrap = partial(Watched, fault=fault, in_sampling=True)
        elif request.param == "torch":
            layers = TrippingLayers(WEIGHTS.layers)
            layers.fault, layers.boundary = fault, int(where)
            held = replace(WEIGHTS, layers=layers)
            wrap = partial(Watched, fault=fault)
        else:
            held = held_by(request.param, weights, CONFIG)
            wrap = partial(CutShort, fault=fault, boundary=int(where))
        harness = Harness(CONFIG, held, byte_vocabulary(), max_chunk_len=32, backend_of=wrap)
        harnesses.append(harness)
        return harness

    yield build
    for harness in harnesses:
        harness.close()


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 5 + i // 7 + salt) % 256 for i in range(length)]


def load(harness: Harness) -> list[Outcome]:
    """Sharers of one prompt, which match what the first has promised, and one apart."""
    shared = prompt(90)
    return [
        harness.submit([*shared, 1], max_new_tokens=8),
        harness.submit([*shared, 2], max_new_tokens=6),
        harness.submit(shared[:60], max_new_tokens=9),
        harness.submit(prompt(40, salt=50), max_new_tokens=5),
    ]


def expected_ids(make: Make) -> list[list[int]]:
    clean = make(Fault(0, 0), 0)
    outcomes = load(clean)
    clean.run()
    return [outcome.ids for outcome in outcomes]


@pytest.mark.parametrize("where", [*BOUNDARIES, IN_SAMPLING])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_a_fault_at_any_layer_boundary_changes_nothing(
    make: Make, at: int, where: int | str
) -> None:
    harness = make(Fault(at, 1), where)
    outcomes = load(harness)
    most_sharers = 0
    while harness.scheduler.stats.num_failed_steps == 0:
        harness.step()
        promised = [n for nodes in harness.cache.unsettled.values() for n in nodes]
        most_sharers = max([most_sharers, *(node.lock_count for node in promised)])
    harness.run()
    assert harness.scheduler.stats.num_failed_steps == 1
    assert [o.ids for o in outcomes] == expected_ids(make)
    assert all(o.finish.kind == "length" for o in outcomes)
    if at == 1:
        assert most_sharers > 1, "nobody relied on what failed"
    harness.assert_drained()


@pytest.mark.parametrize("where", [*BOUNDARIES, IN_SAMPLING])
def test_a_fault_that_comes_again_ends_its_requests_and_nobody_else(
    make: Make, where: int | str
) -> None:
    harness = make(Fault(1, 2), where)
    outcomes = load(harness)
    harness.run()
    failed = [o for o in outcomes if o.finish.kind == "error"]
    assert failed and all("on fire" in o.finish.message for o in failed)
    later = load(harness)
    harness.run()
    assert [o.ids for o in later] == expected_ids(make)
    harness.assert_drained()
