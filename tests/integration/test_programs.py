"""Programs on the real engine: the DSL end to end, and what the cache makes of its forks."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

import espalier as esp
from espalier.runtime.engine import Engine
from espalier.runtime.programs.values import GenInfo


class Pet(BaseModel):
    name: str = Field(max_length=10)
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


class Point(TypedDict):
    x: int
    y: int


def test_typed_values(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += esp.user("Describe a pet as JSON.")
        s += esp.assistant(esp.gen("pet", json_schema=Pet, max_tokens=80))
        s += "x: " + esp.gen("number", dtype=int, max_tokens=20)
        s += " flag: " + esp.gen("flag", dtype=bool)
        s += " kind: " + esp.gen("kind", json_schema=Literal["a", "b"])

    run = program.run(backend=engine)
    assert isinstance(run["pet"], Pet)
    assert isinstance(run["number"], int)
    assert isinstance(run["flag"], bool)
    assert run["kind"] in ("a", "b")


def test_branches_share_their_prefix(engine: Engine) -> None:
    trunk = "A long shared introduction about lighthouses and their keepers. " * 8

    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += trunk
        branches = s.fork(4)
        for index, branch in enumerate(branches):
            branch += f"Question {index}:" + esp.gen("answer", max_tokens=6, ignore_eos=True)
        branches.join()

    engine.flush_cache()
    before = engine.stats
    run = program.run(backend=engine)
    assert len(run["answer"]) == 4
    trunk_len = len(engine.codec.encode(trunk))
    computed = engine.stats.num_computed_tokens - before.num_computed_tokens
    assert computed < trunk_len + 4 * 16


def test_what_was_generated_is_a_cache_hit_in_the_next_gen(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += "Write a list of strange words:" + esp.gen("one", max_tokens=40, ignore_eos=True)
        s += "\nAnd more:" + esp.gen("two", max_tokens=4, ignore_eos=True)

    engine.flush_cache()
    run = program.run(backend=engine, temperature=1.4, seed=5)
    info = run.get_meta_info("two")
    assert isinstance(info, GenInfo)
    usage = info.usage
    assert usage.prompt_tokens - usage.cached_tokens <= 6, "generated ids were tokenised again"


def test_select_prefers_the_likely_choice(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += "The capital of France is" + esp.select("city", [" Paris", " a banana", " Berlin"])

    assert program.run(backend=engine)["city"] == " Paris"


def test_an_async_program_and_streaming(engine: Engine) -> None:
    @esp.function
    async def program(s: esp.ProgramState) -> str:
        s += esp.user("Count to five.")
        s += esp.assistant(esp.gen("answer", max_tokens=16))
        return str(await s.get_async("answer"))

    async def main() -> tuple[Any, list[str]]:
        run = await program.run_async(backend=engine, stream=True)
        pieces = [piece async for piece in run.text_async_iter("answer")]
        await run.sync_async()
        return run.return_value, pieces

    value, pieces = asyncio.run(main())
    assert value == "".join(pieces)
    assert len(pieces) > 1


def test_an_error_is_raised_where_the_result_is_read(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += "x" + esp.gen("y", max_tokens=100_000)
        with pytest.raises(esp.InvalidRequest, match="context length"):
            _ = s["y"]

    program.run(backend=engine)


def test_a_budget_that_no_value_fits_says_so(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += "A pet: " + esp.gen("pet", json_schema=Pet, max_tokens=3)

    with pytest.raises(esp.EspalierError, match="the shortest output"):
        _ = program.run(backend=engine)["pet"]


def test_point_from_a_typed_dict(engine: Engine) -> None:
    @esp.function
    def program(s: esp.ProgramState) -> None:
        s += "A point near the origin: "
        s += esp.gen("point", regex=r'\{"x":\d,"y":\d\}', max_tokens=20)
        s += " again: " + esp.gen("typed", json_schema=Point, max_tokens=60, logit_bias={})

    run = program.run(backend=engine)
    assert run["point"].startswith('{"x":')
