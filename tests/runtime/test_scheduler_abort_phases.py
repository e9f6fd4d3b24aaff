"""An abort that comes while the loop is in any of its phases, in any turn, and twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from espalier.runtime.scheduler.phases import LOOP_PHASES, LoopPhase, LoopWatch
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
NUM_TURNS = 12  # a request's life here: waiting, three chunks, decodes


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Harness]]:
    harnesses: list[Harness] = []

    def build() -> Harness:
        options: dict[str, Any] = {"overlap": request.param, "max_chunk_len": 16}
        harnesses.append(Harness(CONFIG, WEIGHTS, byte_vocabulary(), **options))
        return harnesses[-1]

    yield build
    for harness in harnesses:
        harness.close()


def prompt(length: int, last: int) -> list[int]:
    return [*((i * 7 + i // 5) % 256 for i in range(length - 1)), last]


@pytest.mark.parametrize("phase", LOOP_PHASES)
def test_an_abort_in_any_phase_of_any_turn_ends_its_request_once_and_no_other(
    make: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch, phase: LoopPhase
) -> None:
    harness = make()
    lap = LoopWatch.lap
    turns_left: list[int] = []
    injected: list[int] = []

    def lap_and_abort(self: LoopWatch, of: LoopPhase) -> float:
        if of == phase and turns_left:
            turns_left[0] -= 1
            if turns_left[0] == 0:
                injected.append(1)
                harness.abort("victim")
                harness.abort("victim")
        return lap(self, of)

    alone = harness.submit(prompt(40, 1), max_new_tokens=6)
    harness.run()
    monkeypatch.setattr(LoopWatch, "lap", lap_and_abort)
    kinds: set[str] = set()
    for turn in range(1, NUM_TURNS + 1):
        turns_left[:] = [turn]
        victim = harness.submit(prompt(40, 2), rid="victim", max_new_tokens=6)
        other = harness.submit(prompt(40, 1), max_new_tokens=6)
        harness.run()
        assert len(victim.finals) == len(other.finals) == 1
        assert other.finish.kind == "length" and other.ids == alone.ids
        kinds.add(victim.finish.kind)
        harness.outcomes.clear()
    assert injected and "abort" in kinds
    assert harness.scheduler.stats.num_rebuilds == 0
    assert harness.cache.num_evictable == harness.cache.num_cached
