"""The engine as its users meet it: text in, text out, errors at the edge, clean ends."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from espalier.radix.cache import RadixCache
from espalier.runtime.config import EngineConfig
from espalier.runtime.engine import Engine
from espalier.runtime.errors import (
    EngineClosed,
    EspalierError,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
)
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, LogprobOptions, Regex
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.scheduler import Scheduler

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def greedy(max_new_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        **fields,  # type: ignore[arg-type]
    )


def test_text_in_text_out(engine: Engine) -> None:
    [done] = engine.complete("The capital of France is", greedy(8))
    assert "Paris" in done.text
    assert done.text == engine.codec.decode(done.ids)
    assert done.finish.kind == "length" and done.usage.completion_tokens == 8


def test_a_stop_string_is_cut_off_and_named(engine: Engine) -> None:
    [whole] = engine.complete("1, 2, 3, 4, 5,", greedy(24))
    assert "10" in whole.text
    [cut] = engine.complete("1, 2, 3, 4, 5,", greedy(24, stop=("10",)))
    assert cut.text == whole.text[: whole.text.index("10")]
    assert cut.finish.kind == "stop" and cut.finish.matched == "10"


def test_no_prefix_of_a_stop_string_is_ever_streamed(engine: Engine) -> None:
    ids = engine.codec.encode("1, 2, 3, 4, 5,")
    call = GenerateCall(input_ids=ids, sampling=greedy(24, stop=("9, 10",)))
    text = ""
    for chunk in engine.stream(call):
        text += chunk.text
        assert not any(text.endswith(stop) for stop in ("9", "9,", "9, ", "9, 1"))
    assert text.endswith("8, ")


CODE = r"[A-Z][a-z]{2,9}-\d{2}"
CHOICES = ("naïve", "北京", 'say "yes"')


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def is_code(text: str) -> bool:
    return re.fullmatch(CODE, text) is not None


def is_choice(text: str) -> bool:
    return text in CHOICES


def is_number(text: str) -> bool:
    return re.fullmatch(r"\([0-9]+\)|none", text) is not None


@pytest.mark.parametrize(
    ("constraint", "is_valid"),
    [
        (JsonSchema(json.dumps(PERSON)), is_person),
        (Regex(CODE), is_code),
        (Choice(CHOICES), is_choice),
        (Ebnf('root ::= "(" [0-9]+ ")" | "none"'), is_number),
    ],
    ids=["json", "regex", "choice", "ebnf"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_output_is_valid(
    engine: Engine,
    constraint: Constraint,
    is_valid: Callable[[str], bool],
    temperature: float,
) -> None:
    sampling = SamplingParams(max_new_tokens=120, temperature=temperature, seed=3, n=3)
    for done in engine.complete("Here is the answer: ", sampling, constraint=constraint):
        assert done.finish.kind == "stop", done
        assert is_valid(done.text)


@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        (JsonSchema('{"type": "foo"}'), "json_schema"),
        (JsonSchema("not json"), "json_schema"),
        (Regex("("), "regex"),
        (Ebnf("root ::= missing"), "ebnf"),
        (Choice(()), "choices"),
    ],
)
def test_a_bad_constraint_is_refused_with_words(
    engine: Engine, constraint: Constraint, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.complete("x", greedy(4), constraint=constraint)
    assert param in (caught.value.param or str(caught.value))
    assert len(engine.complete("x", greedy(2))) == 1


@pytest.mark.parametrize("ids", [[-1], [49152], [2**31], [2**63], [True], [1.0], ["1"], [None]])
def test_ids_that_are_none_are_refused_by_index(engine: Engine, ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"input_ids\[1\]"):
        engine.complete([5, *ids], greedy(2))


def test_bad_sampling_parameters_are_refused_by_name(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        engine.complete("x", SamplingParams(temperature=float("nan")))
    with pytest.raises(InvalidRequest, match="context length"):
        engine.complete("x", greedy(10_000))
    with pytest.raises(InvalidRequest, match="empty"):
        engine.complete("", greedy(2))


def test_unknown_stop_ids_are_dropped(engine: Engine) -> None:
    [done] = engine.complete("Hello", greedy(3, stop_token_ids=(119_690, -4)))
    assert done.finish.kind == "length"


def test_a_stop_token_with_text_ends_the_output_before_it(engine: Engine) -> None:
    prompt = engine.codec.encode("1, 2, 3, 4, 5,")
    [free] = engine.complete(prompt, greedy(8))
    stop_id = free.ids[5]
    [done] = engine.complete(prompt, greedy(8, stop_token_ids=(stop_id,)))
    length = free.ids.index(stop_id)
    assert engine.codec.visible_bytes(stop_id)
    assert done.finish.matched == stop_id and done.ids == free.ids[: length + 1]
    assert done.text == engine.codec.decode(free.ids[:length])


def test_control_tokens_in_a_text_prompt_are_plain_text(engine: Engine) -> None:
    ids = engine.codec.encode("<|im_start|>")
    assert not set(ids) & engine.codec.control_ids


def test_n_choices_and_logprobs(engine: Engine) -> None:
    sampling = SamplingParams(max_new_tokens=5, n=3, temperature=1.0, seed=11, ignore_eos=True)
    options = LogprobOptions(top=2, prompt_start=1)
    first = engine.complete("One two three", sampling, logprobs=options)
    again = engine.complete("One two three", sampling, logprobs=options)
    assert [c.ids for c in first] == [c.ids for c in again]
    assert len({c.ids for c in first}) > 1
    for done in first:
        assert done.logprobs is not None and len(done.logprobs) == 5
        assert all(entry.logprob is not None and entry.logprob <= 0 for entry in done.logprobs)
        assert done.prompt_logprobs is not None and len(done.prompt_logprobs) == 2


def test_scores_are_those_of_the_tokens_whatever_is_cached(engine: Engine) -> None:
    encode = engine.codec.encode
    prefix, options = encode("The sky is"), [encode(" blue"), encode(" made of green cheese")]
    engine.flush_cache()
    cold = asyncio.run(engine.score(prefix, options))
    warm = asyncio.run(engine.score(prefix, options))
    assert [[e.token_id for e in option] for option in cold] == options
    for left, right in zip(cold, warm, strict=True):
        assert [e.logprob for e in left] == pytest.approx([e.logprob for e in right], abs=1e-4)
    means = [sum(e.logprob or 0 for e in option) / len(option) for option in cold]
    assert means[0] > means[1]


def test_scoring_plans_all_options_in_one_step(engine: Engine) -> None:
    encode = engine.codec.encode
    before = engine.stats.num_forward_passes
    options = [encode(text) for text in (" yes", " no", " perhaps not")]
    asyncio.run(engine.score(encode("Is water wet? Answer:"), options))
    assert engine.stats.num_forward_passes - before == 1


def test_closing_the_iterator_aborts_the_request(engine: Engine) -> None:
    async def read_two() -> None:
        call = GenerateCall(
            input_ids=engine.codec.encode("Once"), sampling=greedy(400, ignore_eos=True)
        )
        chunks = engine.generate(call)
        await anext(chunks)
        await anext(chunks)
        await chunks.aclose()

    before = engine.stats.num_output_tokens
    asyncio.run(read_two())
    [_] = engine.complete("A later request", greedy(2))
    assert engine.stats.num_running == 0
    assert engine.stats.num_output_tokens - before < 100


def test_many_threads_and_loops_at_once(engine: Engine) -> None:
    expected = engine.complete("The sea", greedy(6))[0].ids

    async def one() -> tuple[int, ...]:
        call = GenerateCall(input_ids=engine.codec.encode("The sea"), sampling=greedy(6))
        return tuple([i async for chunk in engine.generate(call) for i in chunk.ids])

    async def several() -> list[tuple[int, ...]]:
        return list(await asyncio.gather(one(), one(), one()))

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(asyncio.run, several()) for _ in range(2)]
        blocking = [pool.submit(engine.complete, "The sea", greedy(6)) for _ in range(2)]
        for loop in loops:
            assert loop.result(timeout=120) == [expected] * 3
        for done in blocking:
            assert done.result(timeout=120)[0].ids == expected


def test_closing_ends_open_requests_and_threads() -> None:
    before = set(threading.enumerate())
    engine = Engine(kv_pool_tokens=2048)
    call = GenerateCall(
        input_ids=engine.codec.encode("Once upon a time"), sampling=greedy(1500, ignore_eos=True)
    )
    chunks = engine.stream(call)
    next(chunks)
    engine.close()
    with pytest.raises(RequestAborted):
        list(chunks)
    with pytest.raises(EngineClosed):
        engine.complete("x", greedy(1))
    engine.close()
    left = set(threading.enumerate()) - before
    assert not left, left


def test_unknown_options_and_values_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no_such_option"):
        Engine(no_such_option=1)
    with pytest.raises(InvalidRequest, match="policy"):
        Engine(policy="random")


@pytest.mark.parametrize(
    "options",
    [
        {"kv_pool_tokens": "many"},
        {"context_len": 0},
        {"max_running_requests": True},
        {"overlap": 1},
        {"kv_memory_fraction": float("nan")},
        {"compile_deadline_s": 0},
        {"new_token_reserve": 2},
        {"model": 5},
    ],
    ids=str,
)
def test_option_values_of_the_wrong_kind_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineConfig.of(**options)
    assert caught.value.param in options


def test_a_scheduler_that_stops_fails_everybody_and_nobody_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug in the scheduler: open requests of every kind end with the reason."""
    engine = Engine(kv_pool_tokens=2048)
    prompt = engine.codec.encode("Once upon a time")
    sampling = greedy(1500, n=2, ignore_eos=True)
    chunks = engine.stream(GenerateCall(input_ids=prompt, sampling=sampling))
    next(chunks)

    def broken(*_: object, **__: object) -> None:
        raise AssertionError("the books are wrong")

    monkeypatch.setattr(Scheduler, "step", broken)
    with pytest.raises(RequestFailed, match="the books are wrong"):
        list(chunks)
    with pytest.raises(EngineClosed, match="the books are wrong"):
        engine.complete("x", greedy(1))
    with pytest.raises(EngineClosed):
        engine.flush_cache()
    engine.close()
    assert not [t for t in threading.enumerate() if t.name == "espalier-executor"]


def test_a_flush_that_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(kv_pool_tokens=2048)

    def broken(_: object) -> int:
        raise AssertionError("the books are wrong")

    monkeypatch.setattr(RadixCache, "flush", broken)
    with pytest.raises(AssertionError, match="the books"):
        engine.flush_cache()
    engine.close()


def test_an_engine_is_not_closed_from_its_own_threads(engine: Engine) -> None:
    async def close() -> None:
        engine.close()

    with pytest.raises(EspalierError, match="own threads"):
        engine.executor.run(close()).result(timeout=30)
    assert len(engine.complete("x", greedy(1))) == 1


def test_a_stream_that_the_collector_ends_while_another_begins(engine: Engine) -> None:
    """The abandoned generator's clean-up may run in the middle of anything."""
    ids = engine.codec.encode("Once")
    chunks = engine.stream(GenerateCall(input_ids=ids, sampling=greedy(300, ignore_eos=True)))
    next(chunks)
    cycle: list[object] = [chunks]
    cycle.append(cycle)
    del chunks, cycle
    thread = threading.Thread(target=_submit_while_collecting, args=(engine,), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()


def _submit_while_collecting(engine: Engine) -> None:
    with engine._lock:  # pyright: ignore[reportPrivateUsage]
        gc.collect()
    engine.complete("x", greedy(1))


def test_leaving_with_an_open_engine_is_quiet() -> None:
    code = """
from espalier.runtime.config import EngineConfig
from espalier.runtime.engine import Engine
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams
engine = Engine(kv_pool_tokens=2048)
sampling = SamplingParams(max_new_tokens=1000, ignore_eos=True)
next(engine.stream(GenerateCall(input_ids=[1, 2, 3], sampling=sampling)))
chunks = engine.stream(GenerateCall(input_ids=[1, 2, 3], sampling=sampling))
next(chunks)
print("leaving")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
