"""Every kind of constraint and of stop from programs, on the runtime itself and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from espalier.frontend_lang import ProgramState, function, gen
from espalier.frontend_lang.backends.endpoint import RuntimeEndpoint
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.executor import ProgramHost
from espalier.runtime.programs.values import GenInfo
from tests.served_client import served_client

pytestmark = pytest.mark.timeout(120, method="thread")

TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "<[ab]>"}}


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, ProgramHost]]:
    with served_client() as served, RuntimeEndpoint(served.url) as endpoint:
        yield {"runtime": served.executor, "endpoint": endpoint}


@pytest.fixture(params=["runtime", "endpoint"])
def host(hosts: dict[str, ProgramHost], request: pytest.FixtureRequest) -> ProgramHost:
    return hosts[request.param]


def generated(host: ProgramHost, **arguments: Any) -> tuple[Any, GenInfo]:
    @function
    def program(s: ProgramState) -> None:
        given: dict[str, Any] = {"max_tokens": 60, **arguments}
        s += "It is " + gen("x", **given)

    run = program.run(backend=host)
    info = run.get_meta_info("x")
    assert isinstance(info, GenInfo)
    return run["x"], info


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"lark": 'start: "yes" | "no"'}, ("yes", "no")),
        ({"ebnf": 'root ::= "yes" | "no"'}, ("yes", "no")),
        ({"regex": "yes|no"}, ("yes", "no")),
        ({"structural_tag": TAG}, ("<a>", "<b>")),
        ({"json_schema": {"enum": ["yes", 4]}}, ('"yes"', "4")),
        ({"choices": ["yes", "no", "yess"]}, ("yes", "no", "yess")),
    ],
)
def test_each_kind(host: ProgramHost, arguments: Any, allowed: tuple[str, ...]) -> None:
    if "choices" in arguments:
        text = function(_chosen).run(backend=host, choices=arguments["choices"])["x"]
    else:
        text, info = generated(host, **arguments)
        assert info.finish.kind == "stop" and not info.finish.incomplete
    assert text in allowed


def _chosen(s: ProgramState, choices: list[str]) -> None:
    s += "It is " + gen("x", choices=choices)


@pytest.mark.parametrize("arguments", [{"lark": 'start: "a"{99}'}, {"ebnf": 'root ::= "a"{99}'}])
def test_an_incomplete_text_is_one_everywhere(host: ProgramHost, arguments: Any) -> None:
    text, info = generated(host, max_tokens=2, **arguments)
    assert set(text) == {"a"} and info.finish.kind == "length" and info.finish.incomplete


def test_stop_patterns(host: ProgramHost) -> None:
    whole, _ = generated(host)
    text, info = generated(host, stop_regex=[whole[5] + "+", "never{3}"])
    assert text == whole[: whole.index(whole[5])]
    assert info.finish.kind == "stop" and str(info.finish.matched).startswith(whole[5])


@pytest.mark.parametrize(
    "arguments",
    [
        {"lark": "start: ("},
        {"regex": "a("},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "nope"}}},
        {"json_schema": {"type": "nope"}},
        {"ebnf": "root ::= ("},
    ],
)
def test_what_can_not_be_enforced_is_refused_and_nothing_else_suffers(
    host: ProgramHost, arguments: Any
) -> None:
    with pytest.raises(InvalidRequest):
        generated(host, **arguments)
    assert generated(host, regex="fine")[0] == "fine"


@pytest.mark.parametrize("pattern", ["(", "a*", "^a", "x" * 300])
def test_bad_stop_patterns_are_refused_where_the_statement_stands(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        gen("x", stop_regex=pattern)
    assert refused.value.param == "stop_regex"
