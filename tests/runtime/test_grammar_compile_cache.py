"""Compilations shared, bounded, late and abandoned; on an event loop of the test's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from espalier.runtime.errors import EngineClosed, InvalidRequest
from espalier.runtime.grammar.compile_cache import CompileCache
from espalier.runtime.messages import Constraint, Regex

FOREVER_S = 1000.0


@dataclass(frozen=True)
class FakeGrammar:
    num_bytes: int


class GatedCompiler:
    """Compiles when its gate is open; the size of a regex is the number in it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began: Counter[Constraint] = Counter()
        self.stopped: Counter[Constraint] = Counter()

    def cache(self, cache_bytes: int = 100, deadline_s: float = FOREVER_S) -> CompileCache[Any]:
        return CompileCache(self._compile, cache_bytes=cache_bytes, deadline_s=deadline_s)

    async def _compile(self, constraint: Constraint) -> FakeGrammar:
        self.began[constraint] += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped[constraint] += 1
            raise
        assert isinstance(constraint, Regex)
        if not constraint.pattern.isdecimal():
            raise InvalidRequest(f"not a size: {constraint.pattern}", param="regex")
        return FakeGrammar(int(constraint.pattern))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def callers(cache: CompileCache[Any], *patterns: str) -> list[asyncio.Task[FakeGrammar]]:
    return [asyncio.get_running_loop().create_task(cache.get(Regex(p))) for p in patterns]


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


def test_equal_constraints_are_compiled_once() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache()
        waiting = callers(cache, *["7"] * 16)
        await settle()
        compiler.gate.set()
        grammars = await asyncio.gather(*waiting)
        assert len({id(grammar) for grammar in grammars}) == 1
        assert await cache.get(Regex("7")) is grammars[0] is cache.find(Regex("7"))
        assert compiler.began == {Regex("7"): 1}
        assert sum(cache.compile_times.counts) == 1

    run(scene())


def test_errors_reach_everyone_and_are_not_kept() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache()
        waiting = callers(cache, *["bad"] * 3)
        await settle()
        compiler.gate.set()
        for caller in waiting:
            with pytest.raises(InvalidRequest, match="not a size: bad"):
                await caller
        with pytest.raises(InvalidRequest):
            await cache.get(Regex("bad"))
        assert compiler.began[Regex("bad")] == 2
        assert cache.num_late == cache.num_abandoned == 0

    run(scene())


def test_the_cache_drops_what_was_not_used_for_longest() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        compiler.gate.set()
        cache = compiler.cache(cache_bytes=100)
        for size in ("40", "50", "40", "30"):  # 40 was used after 50, which has to go
            await cache.get(Regex(size))
            assert cache.num_bytes <= 100
        for size in ("40", "30"):
            await cache.get(Regex(size))
        assert compiler.began == {Regex("40"): 1, Regex("50"): 1, Regex("30"): 1}
        await cache.get(Regex("50"))
        assert compiler.began[Regex("50")] == 2
        assert (await cache.get(Regex("101"))).num_bytes == 101
        assert cache.num_bytes <= 100

    run(scene())


def test_who_leaves_takes_nothing_from_the_others() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache()
        leaver, stayer = callers(cache, "1", "1")
        await settle()
        leaver.cancel()
        await settle()
        assert leaver.cancelled() and not compiler.stopped
        compiler.gate.set()
        assert (await stayer).num_bytes == 1
        assert cache.num_abandoned == 0

    run(scene())


def test_the_last_who_leaves_ends_the_compilation_and_poisons_nothing() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache()
        waiting = callers(cache, "1", "1")
        await settle()
        for caller in waiting:
            caller.cancel()
        [follower] = callers(cache, "1")  # before the first compilation has ended
        await settle()
        assert compiler.stopped == {Regex("1"): 1} and compiler.began == {Regex("1"): 2}
        compiler.gate.set()
        assert (await follower).num_bytes == 1
        assert (cache.num_abandoned, cache.num_late) == (1, 0)

    run(scene())


def test_after_the_deadline_it_is_a_bad_request_and_may_be_tried_again() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache(deadline_s=0.01)
        for caller in callers(cache, "1", "1"):
            with pytest.raises(InvalidRequest, match=r"regex: compiling takes longer than 0\.01 s"):
                await caller
        await settle()
        assert compiler.stopped == {Regex("1"): 1}
        assert (cache.num_abandoned, cache.num_late) == (0, 1)
        compiler.gate.set()
        assert (await cache.get(Regex("1"))).num_bytes == 1

    run(scene())


def test_closing_fails_those_who_wait() -> None:
    async def scene() -> None:
        compiler = GatedCompiler()
        cache = compiler.cache()
        waiting = callers(cache, "1", "1", "2")
        await settle()
        cache.close()
        for caller in waiting:
            with pytest.raises(EngineClosed):
                await caller

    run(scene())
