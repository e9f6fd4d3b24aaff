"""Arguments of the primitives: what they become, and what is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from espalier.frontend_lang import function, gen, gen_int, gen_string, select
from espalier.frontend_lang.expressions import Generation, Joined
from espalier.frontend_lang.state import ProgramState
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import Ebnf, JsonSchema, LogprobOptions, Regex
from espalier.runtime.programs.executor import Executor
from espalier.runtime.sampling.params import SamplingParams
from tests.scripted_backend import ScriptedBackend

pytestmark = pytest.mark.timeout(20, method="thread")

EVERYTHING: dict[str, Any] = {
    "max_tokens": 7,
    "min_tokens": 2,
    "stop": ["\n", "END"],
    "stop_token_ids": [5],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.1,
    "logit_bias": {3: -1.0},
    "seed": 11,
    "ignore_eos": True,
}
EXPECTED = SamplingParams(
    max_new_tokens=7,
    min_new_tokens=2,
    stop=("\n", "END"),
    stop_token_ids=(5,),
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    frequency_penalty=0.2,
    presence_penalty=0.3,
    repetition_penalty=1.1,
    logit_bias={3: -1.0},
    seed=11,
    ignore_eos=True,
)


@function
def one_gen(s: ProgramState, arguments: dict[str, Any]) -> None:
    s += gen("x", **arguments)


def sampling_of(arguments: dict[str, Any], **run: Any) -> SamplingParams:
    backend = ScriptedBackend()
    with Executor(backend) as executor:
        one_gen.run(arguments, backend=executor, **run)
    return backend.calls[0].sampling


def test_every_sampling_argument_reaches_the_backend_from_gen_or_from_run() -> None:
    assert sampling_of(EVERYTHING) == EXPECTED
    assert sampling_of({}, **EVERYTHING) == EXPECTED


def test_gen_goes_before_run_goes_before_defaults() -> None:
    sampling = sampling_of({"temperature": 0.7}, temperature=0.1, max_tokens=9)
    assert (sampling.temperature, sampling.max_new_tokens) == (0.7, 9)
    assert sampling_of({}) == SamplingParams(max_new_tokens=128, temperature=0.0)
    assert sampling_of({"temperature": 0}, temperature=1.0).temperature == 0


def test_min_tokens_is_held_against_the_run_s_max_tokens() -> None:
    assert sampling_of({"min_tokens": 200}, max_tokens=500).min_new_tokens == 200
    with pytest.raises(InvalidRequest, match=r"min_tokens \(200\) is larger than max_tokens"):
        sampling_of({"min_tokens": 200})


def test_arguments_are_never_mutated_and_later_changes_do_not_matter() -> None:
    stop, ids, bias = ["\n"], [1], {1: 1.0}
    expr = gen("x", stop=stop, stop_token_ids=ids, logit_bias=bias)
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        with s.assistant():
            s += expr

    with Executor(backend) as executor:
        for _ in range(3):
            program.run(backend=executor)
        assert (stop, ids, bias) == (["\n"], [1], {1: 1.0})
        stop.append("x")
        bias[2] = 2.0
        program.run(backend=executor)
    assert {call.sampling.stop for call in backend.calls} == {("\n",)}
    assert all(call.sampling.logit_bias == {1: 1.0} for call in backend.calls)


@pytest.mark.parametrize("stop", [",", [","], (",",)])
def test_stop_is_a_string_or_a_sequence_also_of_gen_int(stop: Any) -> None:
    expr = gen_int("x", stop=stop)
    assert isinstance(expr, Generation)
    assert expr.sampling.stop == (",",)


@pytest.mark.parametrize(
    ("arguments", "constraint"),
    [
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": "root ::= 'a'"}, Ebnf("root ::= 'a'")),
        ({"json_schema": {"type": "null"}}, JsonSchema('{"type": "null"}')),
        ({"json_schema": '{"type":"null"}'}, JsonSchema('{"type":"null"}')),
        (
            {"json_schema": "{}", "open_objects": True},
            JsonSchema("{}", open_objects=True),
        ),
        (
            {"json_schema": {}, "open_objects": False, "unenforced": "validate"},
            JsonSchema("{}", unenforced="validate"),
        ),
        ({}, None),
        ({"dtype": str}, None),
    ],
)
def test_constraints(arguments: dict[str, Any], constraint: object) -> None:
    expr = gen("x", **arguments)
    assert isinstance(expr, Generation)
    assert expr.constraint == constraint


def test_gen_string_is_plain_text() -> None:
    expr = gen_string("x", max_tokens=3)
    assert isinstance(expr, Generation)
    assert (expr.constraint, expr.parse, expr.sampling.max_tokens) == (None, None, 3)


def test_logprobs_are_asked_for() -> None:
    expr = gen("x", return_logprob=True, top_logprobs_num=4)
    assert isinstance(expr, Generation)
    assert expr.logprobs == LogprobOptions(top=4)


def test_gen_with_choices_is_a_select() -> None:
    choices = ["a", "b"]
    expected = select("x", choices, choices_method="greedy_token_selection")
    assert gen("x", choices=choices, choices_method="greedy_token_selection") == expected
    assert gen("x", choices=choices, temperature=0) == select("x", choices)


@pytest.mark.parametrize(
    ("arguments", "kind", "names"),
    [
        ({"temperature": -1}, InvalidRequest, "temperature"),
        ({"temperature": "hot"}, InvalidRequest, "temperature"),
        ({"max_tokens": -1}, InvalidRequest, "max_tokens"),
        ({"max_tokens": 1.5}, InvalidRequest, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, InvalidRequest, "min_tokens"),
        ({"top_k": 0}, InvalidRequest, "top_k"),
        ({"top_p": 0}, InvalidRequest, "top_p"),
        ({"seed": "x"}, InvalidRequest, "seed"),
        ({"stop": ""}, InvalidRequest, "stop"),
        ({"stop": [1]}, InvalidRequest, "stop"),
        ({"stop": 5}, TypeError, "stop"),
        ({"stop_token_ids": 5}, TypeError, "stop_token_ids"),
        ({"logit_bias": [1]}, TypeError, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, InvalidRequest, "logit_bias"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos"),
        ({"n": 0}, ValueError, "n must"),
        ({"n": True}, TypeError, "n must"),
        ({"return_logprob": 3}, TypeError, "return_logprob"),
        ({"top_logprobs_num": 2}, ValueError, "return_logprob"),
        ({"dtype": list}, TypeError, "dtype"),
        ({"dtype": int, "regex": "a"}, ValueError, "dtype and regex"),
        ({"regex": 3}, TypeError, "regex"),
        ({"ebnf": 3}, TypeError, "ebnf"),
        ({"json_schema": "{"}, ValueError, "json_schema"),
        ({"json_schema": "3"}, TypeError, "json_schema"),
        ({"json_schema": {"a": {1}}}, TypeError, "json_schema"),
        ({"json_schema": 3.5}, TypeError, "json_schema"),
        ({"json_schema": {}, "ebnf": "a"}, ValueError, "ebnf and json_schema"),
        ({"json_schema": {}, "open_objects": 1}, TypeError, "open_objects"),
        ({"json_schema": {}, "unenforced": "maybe"}, ValueError, "unenforced"),
        ({"open_objects": True}, ValueError, "json_schema"),
        ({"regex": "a", "unenforced": "validate"}, ValueError, "json_schema"),
        ({"choices": ["a"], "unenforced": "refuse"}, ValueError, "unenforced"),
        ({"choices": []}, ValueError, "choices"),
        ({"choices": ["a", ""]}, ValueError, "choices"),
        ({"choices": "ab"}, TypeError, "choices"),
        ({"choices": ["a"], "temperature": 1.0}, ValueError, "temperature"),
        ({"choices": ["a"], "max_tokens": 3}, ValueError, "max_tokens"),
        ({"choices": ["a"], "choices_method": "best"}, ValueError, "choices_method"),
        ({"choices_method": "greedy_token_selection"}, ValueError, "choices"),
    ],
)
def test_bad_arguments_are_refused_where_they_stand(
    arguments: dict[str, Any], kind: type[Exception], names: str
) -> None:
    with pytest.raises(kind, match=names):
        gen("x", **arguments)


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="name"):
        gen("")


def test_expressions_join_with_strings_on_either_side() -> None:
    expr = "a" + gen("x") + "b"
    assert isinstance(expr, Joined)
    with pytest.raises(TypeError, match="strings and expressions"):
        _ = gen("x") + 3  # type: ignore[operator]
