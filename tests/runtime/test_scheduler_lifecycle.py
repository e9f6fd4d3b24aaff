"""Every event in every phase of a request: one final message, the right one, and exact books."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import pytest

from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.messages import Constraint, Ebnf, SchedulingHints
from espalier.runtime.runner.protocol import LaunchedStep, Runner
from espalier.runtime.sampling.sampler import NOT_FINITE
from espalier.runtime.scheduler.control import FlushCache, Shutdown
from espalier.runtime.scheduler.request import Phase, Request
from espalier.runtime.scheduler.step import Step, StepResult
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.local_grammars import LocalGrammars, byte_engines
from tests.native_kernels import KERNELS, held_by
from tests.steps import ChangedStep

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)

Place = Literal[
    "compiling",  # its grammar is not there yet
    "queued",
    "mid-chunk",  # a part of its prompt is computed or under way
    "running",  # decodes, and no step of it is in flight
    "overlapped",  # decodes, and its next token is under way
    "retracting",  # out of the batch, and a step in flight still fills its slots
    "quarantined",  # runs by itself after NaN logits
]
Event = Literal[
    "abort", "abort twice", "finish", "step failure", "NaN", "retraction", "flush", "shutdown"
]

# How the request ends. An event that can't befall it in its place befalls its neighbour: one
# that waits can't finish, fail or give NaN, and is not retracted.
ENDS: dict[tuple[Place, Event], str] = {
    (place, event): "abort" if event in ("abort", "abort twice", "shutdown") else "length"
    for place, event in product(get_args(Place), get_args(Event))
}
ENDS["quarantined", "NaN"] = "error"


class HeldGrammars(LocalGrammars):
    """Gives a grammar out when it is told to."""

    def __init__(self) -> None:
        super().__init__(byte_engines())
        self._held: list[tuple[Future[CompiledGrammar], Future[CompiledGrammar]]] = []

    def compile(self, constraint: Constraint) -> Future[CompiledGrammar]:
        given: Future[CompiledGrammar] = Future()
        self._held.append((super().compile(constraint), given))
        return given

    def release(self) -> None:
        for compiled, given in self._held:
            if given.set_running_or_notify_cancel():
                given.set_result(compiled.result())
        self._held.clear()


class FaultyRunner:
    """Spoils the next results that it is asked for: it fails, or the rows in `nan` give NaN."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.fails = False
        self.nan_row: int | None = None
        self.num_spoilt = 0
        self.on_launch: Callable[[], None] = lambda: None

    def launch(self, step: Step) -> LaunchedStep:
        self.on_launch()
        return ChangedStep(self._inner.launch(step), lambda result: self.spoil(step, result))

    def spoil(self, step: Step, result: StepResult) -> StepResult:
        if self.fails:
            self.fails = False
            self.num_spoilt += 1
            raise RuntimeError("the device is on fire")
        sampled = dict(result.sampled)
        for index, row in enumerate(step.rows):
            if row.table_row == self.nan_row and index in sampled:
                sampled[index] = replace(sampled[index], failure=NOT_FINITE)
                self.num_spoilt += 1
                self.nan_row = None
        return replace(result, sampled=sampled)

    def close(self) -> None:
        self._inner.close()


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 5 + i // 7 + salt) % 256 for i in range(length)]


@dataclass
class Scene:
    """A victim, its older neighbour, which goes on through all of it, and their scheduler."""

    harness: Harness
    grammars: HeldGrammars
    runner: FaultyRunner
    neighbour: Outcome
    victim: Outcome

    def request(self, outcome: Outcome) -> Request:
        return self.harness.request(outcome)

    @property
    def in_flight(self) -> bool:
        """Whether a step that has not settled touches the victim."""
        holdings = self.harness.scheduler._holdings  # pyright: ignore[reportPrivateUsage]
        return holdings.touched_in_flight(self.request(self.victim))

    def is_at(self, place: Place) -> bool:
        if self.victim.finals:
            return False
        request = self.request(self.victim)
        is_running = request.phase is Phase.RUNNING
        match place:
            case "compiling":
                return request.phase is Phase.COMPILING
            case "queued":
                return request.phase is Phase.WAITING and not request.quarantined
            case "mid-chunk":
                return is_running and request.prefilling and request.kv_len > 0
            case "running":
                decodes = is_running and request.num_outputs > 0
                return decodes and not self.in_flight and not request.quarantined
            case "overlapped":
                return is_running and request.num_outputs > 0 and request.num_pending > 0
            case "retracting":
                return request.phase is Phase.RETRACTING
            case "quarantined":
                return is_running and request.quarantined and request.kv_len > 0

    def reach(self, place: Place) -> None:
        if place == "quarantined":
            self.step_until("overlapped" if self.overlaps else "running")
            self.runner.nan_row = self.request(self.victim).table_row
        self.step_until(place)

    @property
    def overlaps(self) -> bool:
        return self.harness.overlaps

    def step_until(self, place: Place) -> None:
        for _ in range(40):
            if self.is_at(place):
                return
            self.harness.step()
        raise AssertionError(f"it never got {place}")

    def happen_while_retracting(self, event: Event) -> Callable[[], bool]:
        """In the middle of the one round in which the victim is that."""
        happened: list[Callable[[], bool]] = []

        def on_launch() -> None:
            if not happened and self.is_at("retracting"):
                happened.append(self.happen(event))

        self.step_until("overlapped")
        self.retract()
        self.runner.on_launch = on_launch
        self.harness.step()
        return happened[0]

    def retract(self) -> None:
        """Something urgent comes that takes the place of the last one in rank."""
        self.harness.submit(prompt(9, 70), max_new_tokens=2, hints=SchedulingHints(priority=9))

    def happen(self, event: Event) -> Callable[[], bool]:
        """Have it happen; the answer tells afterwards whether it really has."""
        stats = self.harness.scheduler.stats
        concerned = self.victim if self.request(self.victim).holds_kv else self.neighbour
        rid = self.victim.request.rid
        match event:
            case "abort":
                self.harness.abort(rid)
                return lambda: True
            case "abort twice":
                self.harness.abort(rid)
                self.harness.abort(rid)
                return lambda: True
            case "finish":
                return lambda: bool(concerned.finals)
            case "step failure":
                self.runner.fails = True
                return lambda: (
                    self.harness.scheduler.stats.num_failed_steps == stats.num_failed_steps + 1
                )
            case "NaN":
                before = self.runner.num_spoilt
                self.runner.nan_row = self.request(concerned).table_row
                return lambda: self.runner.num_spoilt == before + 1
            case "retraction":
                self.retract()
                retracting = self.request(self.victim).phase is Phase.RETRACTING
                at_least = stats.num_retractions + (not retracting)
                return lambda: self.harness.scheduler.stats.num_retractions >= at_least
            case "flush":
                reply: Future[int] = Future()
                self.harness.scheduler.inbox.put(FlushCache(reply))
                return reply.done
            case "shutdown":
                self.harness.scheduler.inbox.put(Shutdown())
                return lambda: True


@pytest.fixture(params=KERNELS)
def scene(request: pytest.FixtureRequest) -> Iterator[Callable[..., Scene]]:
    harnesses: list[Harness] = []

    def build(place: Place, max_new_tokens: int, *, overlap: bool) -> Scene:
        grammars = HeldGrammars()
        harness = Harness(
            CONFIG,
            held_by(request.param, WEIGHTS, CONFIG),
            byte_vocabulary(),
            grammars=grammars,
            overlap=overlap,
            policy="priority",
            preemption_gap=1,
            max_running_requests=1 if place in ("compiling", "queued") else 2,
            max_chunk_len=8,
        )
        runner = FaultyRunner(harness.runner)
        harness.wrap_runner(runner)
        harnesses.append(harness)
        neighbour = harness.submit(prompt(12), rid="neighbour", max_new_tokens=30)
        constraint = Ebnf("root ::= [a-z]{40}") if place == "compiling" else None
        victim = harness.submit(
            prompt(30), rid="victim", max_new_tokens=max_new_tokens, constraint=constraint
        )
        harness.step()
        return Scene(harness, grammars, runner, neighbour, victim)

    yield build
    for harness in harnesses:
        harness.close()


def possible(place: Place, overlap: bool) -> bool:
    """Without overlap nothing is in flight between two rounds; with it, something is always."""
    return place not in (("running",) if overlap else ("overlapped", "retracting"))


PAIRS = [
    pytest.param(place, event, overlap, id=f"{place}-{event}-{'overlap' if overlap else 'plain'}")
    for place, event in ENDS
    for overlap in (True, False)
    if possible(place, overlap)
]


@pytest.mark.parametrize(("place", "event", "overlap"), PAIRS)
def test_every_event_in_every_phase(
    scene: Callable[..., Scene], place: Place, event: Event, overlap: bool
) -> None:
    expected = undisturbed(scene, place, overlap)
    played = scene(place, 10, overlap=overlap)
    if place == "retracting":
        has_happened = played.happen_while_retracting(event)
    else:
        played.reach(place)
        assert played.is_at(place)
        has_happened = played.happen(event)
    if event == "finish" and place in ("compiling", "queued"):
        for _ in range(100):
            if has_happened():
                break
            played.harness.step()
            assert played.is_at(place) or has_happened()
    else:
        played.harness.step()
    if event in ("abort", "shutdown", "abort twice"):
        assert played.victim.finals, "an abort takes more than a round"
        played.harness.abort("victim")
    played.grammars.release()
    played.harness.run(2000)
    assert has_happened()
    assert played.victim.finish.kind == ENDS[place, event]
    if played.victim.finish.kind == "length":
        assert played.victim.ids == expected["victim"]
    if event != "shutdown":
        assert played.neighbour.finish.kind == "length"
        assert played.neighbour.ids == expected["neighbour"]
    played.harness.assert_drained()


def undisturbed(scene: Callable[..., Scene], place: Place, overlap: bool) -> dict[str, list[int]]:
    alone = scene(place, 10, overlap=overlap)
    alone.grammars.release()
    alone.harness.run(2000)
    return {"victim": alone.victim.ids, "neighbour": alone.neighbour.ids}


def test_the_table_has_every_pair_and_every_pair_is_tested() -> None:
    everything = set(product(get_args(Place), get_args(Event)))
    tested = {(pair.values[0], pair.values[1]) for pair in PAIRS}
    assert set(ENDS) == everything == tested
