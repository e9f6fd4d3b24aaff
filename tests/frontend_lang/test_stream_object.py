"""JSON values while they are written: what is there of them, and that they only grow."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, cast

import pytest
from pydantic import BaseModel

from espalier.frontend_lang import ProgramState, function, gen
from espalier.frontend_lang.partial_json import PartialJson
from espalier.runtime.errors import RequestFailed
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(60, method="thread")


class City(BaseModel):
    name: str
    population: int


PIECES = ('{"name":"Lis', 'bon","popu', 'lation":5', "45", "000}")
PARTIALS = [
    {"name": "Lis"},
    {"name": "Lisbon"},
    {"name": "Lisbon", "population": 545000},
]


@function
def program(s: ProgramState) -> None:
    s += gen("city", schema=City)


def test_a_run_that_goes_on_is_read_as_it_grows() -> None:
    gates = [Gate(), Gate()]
    script = answer(*PIECES, gates={1: gates[0], 3: gates[1]})
    with Executor(ScriptedBackend(lambda prompt, call: script)) as executor:
        run = program.run(backend=executor, stream=True)
        partials = iter(run.stream_object("city"))
        assert next(partials) == PARTIALS[0]
        gates[0].open()
        assert next(partials) == PARTIALS[1]
        gates[1].open()
        assert list(partials) == PARTIALS[2:]
        assert list(run.stream_object("city")) == PARTIALS
        assert run["city"] == City(name="Lisbon", population=545000)


def test_inside_programs_in_both_worlds() -> None:
    @function
    def sync(s: ProgramState) -> list[Any]:
        s += gen("city", schema=City)
        return list(s.stream_object("city"))

    @function
    async def both(s: ProgramState) -> list[Any]:
        s += gen("city", schema=City)
        partials = [partial async for partial in s.stream_object("city")]
        assert await s.get_async("city") == City(name="Lisbon", population=545000)
        return partials

    async def main(executor: Executor) -> Any:
        run = await both.run_async(backend=executor, stream=True)
        partials = [partial async for partial in run.stream_object("city")]
        await run.sync_async()
        return run.return_value, partials

    with Executor(ScriptedBackend(lambda prompt, call: answer(*PIECES))) as executor:
        assert sync.run(backend=executor).return_value == PARTIALS
        assert asyncio.run(main(executor)) == (PARTIALS, PARTIALS)


def test_what_is_no_json_is_told_at_its_end() -> None:
    def script(prompt: str, call: object) -> Answer:
        return answer("Sure! ", '{"a":1}')

    @function
    def free(s: ProgramState) -> None:
        s += gen("x") + gen("many", n=2)

    with Executor(ScriptedBackend(script)) as executor:
        run = free.run(backend=executor)
        with pytest.raises(ValueError, match="expected value at line 1"):
            list(run.stream_object("x"))
        with pytest.raises(ValueError, match="'many' is not one text"):
            list(run.stream_object("many"))
        with pytest.raises(KeyError, match="no variable 'y'"):
            list(run.stream_object("y"))


def test_a_run_s_error_comes_after_what_is_there() -> None:
    script = answer('{"name":"L', error=RequestFailed("no"))
    with Executor(ScriptedBackend(lambda prompt, call: script)) as executor:
        run = program.run(backend=executor, stream=True)
        partials = iter(run.stream_object("city"))
        assert next(partials) == {"name": "L"}
        with pytest.raises(RequestFailed):
            next(partials)


# -- the values ----------------------------------------------------------------------------------


def partials_of(text: str, rng: random.Random) -> list[Any]:
    json_text, found = PartialJson(), list[Any]()
    while text:
        length = rng.randint(1, 4)
        found += json_text.feed(text[:length])
        text = text[length:]
    return [*found, *json_text.end()]


def some_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind < 2:
        return "".join(rng.choices('ab"\\\n/é😀 {[,:1', k=rng.randrange(8)))
    if kind == 2:
        return rng.choice((0, -1, 12345678901234567890, 1.5, -2e-30, 1e300))
    if kind < 5:
        return rng.choice((True, False, None))
    values = [some_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return values if kind == 5 else {f'k"{index}': value for index, value in enumerate(values)}


def is_grown(new: Any, old: Any) -> bool:
    """Whether `new` is `old` with more at the end of what is open."""
    if isinstance(old, str) and isinstance(new, str):
        return new.startswith(old)
    if type(old) is not type(new) or not isinstance(old, dict | list):
        return bool(new == old)
    before, after = members(cast(Any, old)), members(new)
    last = len(before) - 1
    if len(after) < len(before) or after[: max(last, 0)] != before[: max(last, 0)]:
        return False
    return not before or is_grown(after[last], before[last])


def members(value: dict[str, Any] | list[Any]) -> list[Any]:
    """Items in their order; of an object, each key and then its value."""
    if isinstance(value, list):
        return value
    return [part for item in value.items() for part in item]


def test_values_only_grow_and_end_as_the_text_says() -> None:
    rng = random.Random(0)
    for _ in range(400):
        value = some_value(rng, 3)
        layout = rng.choice(((",", ":"), (" , ", " : ")))
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=layout)
        found = partials_of(text, rng)
        assert found[-1] == value
        for old, new in zip(found, found[1:], strict=False):
            assert is_grown(new, old) and new != old, (text, old, new)


@pytest.mark.parametrize("text", ["", " ", "{", '{"a":1', "[1,2", '"a', "nul", "1 2", '"\\ud800"'])
def test_texts_that_are_not_whole(text: str) -> None:
    json_text = PartialJson()
    list(json_text.feed(text))
    with pytest.raises(ValueError):
        list(json_text.end())
