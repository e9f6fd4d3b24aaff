"""Compilation off the caller's thread: one flight, bounded cache, deadlines, cancellation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from espalier.runtime.errors import EngineClosed, InvalidRequest
from espalier.runtime.grammar.compile_cache import CompileCache
from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.messages import Choice, Constraint, JsonSchema, Regex
from tests.fakes import BYTE_VOCAB, EOS, byte_tokens

WAIT_S = 30.0


@dataclass(frozen=True)
class FakeGrammar:
    constraint: Constraint
    num_bytes: int


class GatedCompiler:
    """Compiles when its gate is open; the size of a regex is the number in it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)
        self.calls: Counter[Constraint] = Counter()

    def __call__(self, constraint: Constraint) -> FakeGrammar:
        self.calls[constraint] += 1
        self.started.release()
        assert self.gate.wait(WAIT_S)
        assert isinstance(constraint, Regex)
        if not constraint.pattern.isdecimal():
            raise InvalidRequest(f"not a size: {constraint.pattern}", param="regex")
        return FakeGrammar(constraint, int(constraint.pattern))


MakeCache = Callable[..., CompileCache[FakeGrammar]]


@pytest.fixture
def compiler() -> Iterator[GatedCompiler]:
    gated = GatedCompiler()
    yield gated
    gated.gate.set()


@pytest.fixture
def make_cache(compiler: GatedCompiler) -> Iterator[MakeCache]:
    made: list[CompileCache[FakeGrammar]] = []

    def make(cache_bytes: int = 100, deadline_s: float = WAIT_S) -> CompileCache[FakeGrammar]:
        made.append(
            CompileCache(compiler, cache_bytes=cache_bytes, num_threads=1, deadline_s=deadline_s)
        )
        return made[-1]

    yield make
    compiler.gate.set()
    for cache in made:
        cache.close()


def test_equal_constraints_are_compiled_once(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    cache = make_cache()
    with ThreadPoolExecutor(16) as pool:
        futures = list(pool.map(cache.get, [Regex("7")] * 16))
    compiler.gate.set()
    grammars = {id(future.result(WAIT_S)) for future in futures}
    assert len(grammars) == 1 and len({id(future) for future in futures}) == 16
    assert compiler.calls == {Regex("7"): 1}
    assert cache.get(Regex("7")).result(WAIT_S).num_bytes == 7
    assert compiler.calls == {Regex("7"): 1}


def test_errors_reach_everyone_and_are_not_kept(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    cache = make_cache()
    futures = [cache.get(Regex("bad")) for _ in range(3)]
    compiler.gate.set()
    for future in futures:
        with pytest.raises(InvalidRequest, match="not a size: bad"):
            future.result(WAIT_S)
    with pytest.raises(InvalidRequest):
        cache.get(Regex("bad")).result(WAIT_S)
    assert compiler.calls[Regex("bad")] == 2


def test_the_cache_drops_the_least_recently_used(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    compiler.gate.set()
    cache = make_cache(cache_bytes=100)
    for size in ("40", "50", "40", "30"):  # 40 was used after 50, which has to go
        cache.get(Regex(size)).result(WAIT_S)
        assert cache.used_bytes <= 100
    for size in ("40", "30"):
        cache.get(Regex(size)).result(WAIT_S)
    assert compiler.calls == {Regex("40"): 1, Regex("50"): 1, Regex("30"): 1}
    cache.get(Regex("50")).result(WAIT_S)
    assert compiler.calls[Regex("50")] == 2
    assert cache.get(Regex("101")).result(WAIT_S).num_bytes == 101
    assert cache.used_bytes <= 100


def test_many_constraints_stay_within_the_bound(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    compiler.gate.set()
    cache = make_cache(cache_bytes=1000)
    for future in [cache.get(Regex(str(size))) for size in range(400)]:
        future.result(WAIT_S)
        assert cache.used_bytes <= 1000


def test_who_cancels_takes_nothing_from_the_others(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    cache = make_cache()
    leaver, stayer = cache.get(Regex("1")), cache.get(Regex("1"))
    assert leaver.cancel()
    compiler.gate.set()
    assert stayer.result(WAIT_S).num_bytes == 1
    with pytest.raises(CancelledError):
        leaver.result(WAIT_S)


def test_a_queued_compilation_that_nobody_wants_is_dropped(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    cache = make_cache()
    running, queued = cache.get(Regex("1")), cache.get(Regex("2"))
    assert compiler.started.acquire(timeout=WAIT_S)
    assert queued.cancel()
    compiler.gate.set()
    assert running.result(WAIT_S).num_bytes == 1
    assert cache.get(Regex("3")).result(WAIT_S).num_bytes == 3
    assert compiler.calls[Regex("2")] == 0
    assert cache.get(Regex("2")).result(WAIT_S).num_bytes == 2


def test_a_deadline_fails_the_caller_and_poisons_nothing(
    compiler: GatedCompiler, make_cache: MakeCache
) -> None:
    cache = make_cache(deadline_s=0.05)
    late = cache.get(Regex("1"))
    with pytest.raises(InvalidRequest, match=r"regex: compiling takes longer than 0\.05 s"):
        late.result(WAIT_S)
    assert compiler.calls[Regex("1")] == 1
    finished = threading.Event()
    compiler.gate.set()
    follower = cache.get(Regex("2"))
    follower.add_done_callback(lambda _: finished.set())
    assert finished.wait(WAIT_S)
    assert cache.get(Regex("1")).result(WAIT_S).num_bytes == 1
    assert compiler.calls[Regex("1")] == 1, "the late result was kept"


def test_closing_fails_those_who_wait(compiler: GatedCompiler, make_cache: MakeCache) -> None:
    cache = make_cache()
    futures = [cache.get(Regex(size)) for size in ("1", "1", "2")]
    assert compiler.started.acquire(timeout=WAIT_S)
    cache.close()
    for future in futures:
        with pytest.raises(EngineClosed):
            future.result(WAIT_S)
    with pytest.raises(EngineClosed):
        cache.get(Regex("1"))


def test_a_callback_may_ask_again(compiler: GatedCompiler, make_cache: MakeCache) -> None:
    """Callbacks run with no lock held."""
    cache = make_cache()
    asked: list[Future[FakeGrammar]] = []
    done = threading.Event()

    def again(_: Future[FakeGrammar]) -> None:
        asked.append(cache.get(Regex("1")))
        done.set()

    cache.get(Regex("1")).add_done_callback(again)
    compiler.gate.set()
    assert done.wait(WAIT_S)
    assert asked[0].result(WAIT_S).num_bytes == 1


@pytest.fixture
def service() -> Iterator[GrammarService]:
    tokens = byte_tokens()
    made = GrammarService(
        tokens, control_ids=range(256, len(tokens)), stop_ids=(EOS,), vocab_width=BYTE_VOCAB
    )
    yield made
    made.close()


def test_the_service_compiles_real_grammars(service: GrammarService) -> None:
    grammar = service.compile(Choice(("ok",))).result(WAIT_S)
    assert service.compile(Choice(("ok",))).result(WAIT_S) is grammar
    matcher = grammar.matcher()
    row = np.zeros((BYTE_VOCAB + 31) // 32, np.int32)
    for token_id in (ord("o"), ord("k"), EOS):
        assert matcher.fill(row)
        assert row[token_id // 32] == np.uint32(1 << token_id % 32).astype(np.int32)
        assert matcher.accept(token_id)
    assert matcher.is_terminated


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema('"INVALID"'),
        JsonSchema("INVALID"),
        JsonSchema('{"type":"foo"}'),
        JsonSchema('{"format":"uuid"}'),
        Regex("("),
        Regex("[z-a]"),
        Regex(r"\p{L}"),
        Regex("(?=a)"),
        Regex("a\0"),
        Choice(()),
    ],
    ids=repr,
)
def test_bad_constraints_are_refused_with_words(
    service: GrammarService, constraint: Constraint
) -> None:
    with pytest.raises(InvalidRequest, match=r"\w+ .*\w+ ") as refused:
        service.compile(constraint).result(WAIT_S)
    assert refused.value.param in ("json_schema", "regex", "choices")
    assert service.compile(Regex("a")).result(WAIT_S).num_bytes > 0
