"""Public bug reports about structured output, as small inputs: each must be right here.

A report's valid texts are accepted in some spelling that stands for the same value, and its
invalid ones are not, in any spelling if it is the value that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.schemas.spellings import spellings
from bench.schemas.values import read
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.checks import check_constraint
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.schema import SchemaTrouble
from espalier.runtime.grammar.validation import validate_json
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Constraint, Ebnf, Regex

REPORTS = Path(__file__).parents[3] / "shared/reference/structured_bugs.json"
Accepts = Callable[[str], bool]
EOS_ID = 256
TOKENS = (*(bytes([value]) for value in range(EOS_ID)), b"</s>")
ENGINES = Engines(Vocabulary(TOKENS, (EOS_ID,), (EOS_ID,), EOS_ID + 1))

pytestmark = pytest.mark.skipif(
    not REPORTS.exists(), reason="the collection of reports is not beside the checkout"
)


def reports() -> list[Any]:
    if not REPORTS.exists():
        return []
    return [
        pytest.param(report, id=report["id"])
        for report in json.loads(REPORTS.read_text())
        # One names its schema without giving it: see the test of nested `oneOf`.
        if isinstance(report["schema_or_grammar"], dict) or report["kind"] in ("regex", "ebnf")
    ]


def of_schema(schema: str) -> Accepts:
    from espalier.runtime.grammar.schema import acceptance

    return acceptance(schema, open_objects=True).accepts


def of_constraint(constraint: Constraint) -> Accepts:
    """A constraint that is no schema, on the path by which requests bring it."""
    check_constraint(constraint)
    grammar = ENGINES.load(compile_constraint(constraint, ENGINES))

    def accepts(text: str) -> bool:
        guide = grammar.guide()
        return all(map(guide.accept, text.encode())) and guide.is_completed

    return accepts


def compiled(report: dict[str, Any]) -> Accepts:
    stated = report["schema_or_grammar"]
    match report["kind"]:
        case "regex":
            return of_constraint(Regex(stated))
        case "ebnf":
            return of_constraint(Ebnf(stated))
        case _:  # a schema; of those about speed, that they compile and what they accept
            return of_schema(json.dumps(stated))


def standing_for_the_same(report: dict[str, Any], text: str) -> Iterator[str]:
    yield text
    if report["kind"] not in ("regex", "ebnf"):
        schema = json.dumps(report["schema_or_grammar"])
        yield from spellings(read(text), read(schema))


def is_wrong_value(report: dict[str, Any], text: str) -> bool:
    """Whether the text is JSON, and what it says is not what the schema asks for."""
    if report["kind"] in ("regex", "ebnf"):
        return False
    is_json = validate_json("true", text).valid is True
    return is_json and validate_json(json.dumps(report["schema_or_grammar"]), text).valid is False


@pytest.mark.parametrize("report", reports())
def test_a_report_does_not_hold_here(report: dict[str, Any]) -> None:
    may_be_refused = not report["valid_examples"] or "error" in report.get("expected", "")
    try:
        accepts = compiled(report)
    except (InvalidRequest, SchemaTrouble) as refusal:
        assert may_be_refused, refusal
        return
    for text in report["valid_examples"]:
        assert any(map(accepts, standing_for_the_same(report, text))), text
    for text in report["invalid_examples"]:
        assert not accepts(text), text
        if is_wrong_value(report, text):
            assert not any(map(accepts, standing_for_the_same(report, text))), text


@pytest.mark.parametrize("depth", [1, 3, 5, 7])
def test_nested_one_of_compiles_or_is_refused(depth: int) -> None:
    """vllm-54003: compile time grew faster than exponentially, without end."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        branches = [closed("x", {"const": tag}, schema) for tag in ("a", "b")]
        schema = {"oneOf": branches}
    try:
        accepts = of_schema(json.dumps(schema))
    except SchemaTrouble:
        return
    text = "1"
    for _ in range(depth):
        text = f'{{"x":"a","inner":{text}}}'
    assert accepts(text)
    assert not accepts(text.replace('"a"', '"c"'))


def closed(name: str, schema: Any, inner: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: schema, "inner": inner},
        "required": [name, "inner"],
        "additionalProperties": False,
    }
