"""One program, three backends: in this process, on processes of its own, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import pytest
from pydantic import BaseModel, Field

import espalier as esp
from espalier.runtime.completion import Completion, collect
from espalier.runtime.engine import Engine
from espalier.runtime.messages import JsonSchema, LogprobOptions
from espalier.runtime.programs.backend import Backend, GenerateCall, TextPiece
from espalier.runtime.programs.executor import ProgramHost
from espalier.runtime.programs.values import GenInfo, SelectInfo
from tests.integration.servers import OPTIONS, is_idle, launcher, seconds_until

TEXT_BACKENDS = ["runtime", "endpoint"]


@pytest.fixture(scope="module")
def hosts(engine: Engine) -> Iterator[dict[str, ProgramHost]]:
    """All of them at once: what one computes is nothing to the others."""
    options = {name: value for name, value in OPTIONS.items() if name != "port"}
    with (
        launcher() as server,
        esp.Runtime("smollm2", **options) as runtime,
        esp.RuntimeEndpoint(server.url) as endpoint,
    ):
        yield {"engine": engine, "runtime": runtime, "endpoint": endpoint}


class Pet(BaseModel):
    name: str = Field(max_length=10)
    kind: Literal["cat", "dog"]


@esp.function
def everything(s: esp.ProgramState) -> None:
    s += esp.system("You are brief.") + esp.user("Describe a pet as JSON.")
    s += esp.assistant(esp.gen("pet", json_schema=Pet, max_tokens=60))
    branches = s.fork(3)
    for index, branch in enumerate(branches):
        branch += esp.user(f"Question {index}: what does it eat? 漢字 😀")
        branch += esp.assistant(
            esp.gen("answer", max_tokens=12, stop=["\n", "."], return_logprob=True)
        )
    branches.join()
    s += esp.user("Is it good?") + esp.assistant(esp.select("verdict", ["yes", "no", "maybe"]))
    s += esp.user("Dice:")
    s += esp.assistant(esp.gen("dice", n=2, max_tokens=5, temperature=1.0, seed=7, top_p=0.9))


def picture(run: esp.ProgramRun) -> dict[str, object]:
    """All that a run shows of itself, log-probabilities rounded: torch sums in any order."""
    answers = run.get_meta_info("answer")
    verdict = run.get_meta_info("verdict")
    assert isinstance(answers, list) and isinstance(verdict, SelectInfo)
    logprobs = [
        [(entry.token_id, round(entry.logprob or 0.0, 3)) for entry in info.logprobs or ()]
        for info in answers
        if isinstance(info, GenInfo)
    ]
    finishes = [info.finish for info in answers if isinstance(info, GenInfo)]
    return {
        "text": run.text(),
        "pet": run["pet"],
        "answers": run["answer"],
        "verdict": run["verdict"],
        "dice": run["dice"],
        "logprobs": logprobs,
        "finishes": finishes,
        "scores": [round(score, 3) for score in verdict.scores],
    }


@pytest.mark.parametrize("name", TEXT_BACKENDS)
def test_a_program_gives_the_same_everywhere(hosts: dict[str, ProgramHost], name: str) -> None:
    here = picture(everything.run(backend=hosts["engine"], temperature=0))
    there = picture(everything.run(backend=hosts[name], temperature=0))
    assert there == here
    assert there["answers"] and there["logprobs"]


@pytest.mark.parametrize("name", TEXT_BACKENDS)
def test_the_same_ids_everywhere(hosts: dict[str, ProgramHost], name: str) -> None:
    """What the state is made of: the ids themselves, chunk by chunk."""

    async def ids(backend: Backend) -> list[int]:
        prompt = await backend.encode([TextPiece("Once upon a time, in a village")])
        sampling = esp.SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True)
        call = GenerateCall(input_ids=prompt, sampling=sampling)
        return [i async for chunk in backend.generate(call) for i in chunk.ids]

    there = hosts[name].executor
    here = hosts["engine"].executor
    assert there.run(ids(there.backend)).result() == here.run(ids(here.backend)).result()


@pytest.mark.parametrize("name", ["engine", *TEXT_BACKENDS])
def test_forced_tokens_are_marked(hosts: dict[str, ProgramHost], name: str) -> None:
    async def answer(backend: Backend) -> Completion:
        good = '{"type": "boolean"}'
        schema = (
            f'{{"type": "object", "properties": {{"is_good": {good}}}, "required": ["is_good"]}}'
        )
        call = GenerateCall(
            input_ids=await backend.encode([TextPiece("A record:")]),
            sampling=esp.SamplingParams(max_new_tokens=40, temperature=0.0),
            constraint=JsonSchema(schema),
            logprobs=LogprobOptions(output=True),
        )
        [whole] = collect([chunk async for chunk in backend.generate(call)])
        return whole

    executor = hosts[name].executor
    whole = executor.run(answer(executor.backend)).result()
    assert len(whole.forced) == whole.usage.forced_tokens > 2
    assert whole.logprobs is not None
    assert all(whole.logprobs[place].logprob is None for place in whole.forced)
    here = hosts["engine"].executor
    assert whole.forced == here.run(answer(here.backend)).result().forced


@pytest.mark.parametrize("name", TEXT_BACKENDS)
def test_text_streams_while_it_is_made(hosts: dict[str, ProgramHost], name: str) -> None:
    @esp.function
    def story(s: esp.ProgramState) -> None:
        s += "Once upon a time" + esp.gen("story", max_tokens=24, temperature=0, ignore_eos=True)

    whole = story.run(backend=hosts["engine"])["story"]
    pieces = list(story.run(backend=hosts[name], stream=True).text_iter("story"))
    assert "".join(pieces) == whole and len(pieces) > 5

    async def stream() -> list[str]:
        run = await story.run_async(backend=hosts[name], stream=True)
        return [piece async for piece in run.text_async_iter("story")]

    assert "".join(asyncio.run(stream())) == whole


@pytest.mark.parametrize("name", ["engine", *TEXT_BACKENDS])
def test_a_batch_of_runs(hosts: dict[str, ProgramHost], name: str) -> None:
    @esp.function
    def count(s: esp.ProgramState, start: int) -> str:
        if start == 3:
            raise ValueError("three is bad")
        s += f"{start}, {start + 1}," + esp.gen("next", max_tokens=4, temperature=0)
        return str(s["next"])

    items = [{"start": i} for i in range(6)]
    runs = count.run_batch(items, backend=hosts[name], num_threads=4, on_error="keep")
    assert [run.error() is None for run in runs] == [True, True, True, False, True, True]
    alone = [count.run(start=i, backend=hosts["engine"]).return_value for i in (0, 5)]
    assert [runs[0].return_value, runs[5].return_value] == alone
    with pytest.raises(esp.BatchFailed, match="three is bad"):
        count.run_batch(items, backend=hosts[name])


@pytest.mark.parametrize("name", TEXT_BACKENDS)
def test_errors_are_the_same_everywhere(hosts: dict[str, ProgramHost], name: str) -> None:
    @esp.function
    def too_long(s: esp.ProgramState) -> None:
        s += "word " * 9000 + esp.gen("x", max_tokens=4)

    @esp.function
    def bad_schema(s: esp.ProgramState) -> None:
        s += esp.gen("x", json_schema='{"type": "object", "minProperties": 3}')

    for program in (too_long, bad_schema):
        errors: list[Exception] = []
        for host in (hosts["engine"], hosts[name]):
            with pytest.raises(esp.InvalidRequest) as refused:
                program.run(backend=host)
            errors.append(refused.value)
        assert type(errors[0]) is type(errors[1])


def test_an_abandoned_program_frees_its_requests() -> None:
    @esp.function
    def endless(s: esp.ProgramState) -> None:
        branches = s.fork(3)
        for branch in branches:
            branch += "Once" + esp.gen("x", max_tokens=4000, ignore_eos=True)
        next(branches[0].text_iter("x"))
        raise RuntimeError("enough")

    with launcher() as server, esp.RuntimeEndpoint(server.url) as endpoint:
        with pytest.raises(RuntimeError, match="enough"):
            endless.run(backend=endpoint)
        assert seconds_until(lambda: is_idle(server.url)) < 2.0
