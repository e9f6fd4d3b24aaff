"""Constraints refused at the edge: each with the name of its field and the trouble."""

from __future__ import annotations

import dataclasses
import json
import sys
import tracemalloc
from types import FrameType
from typing import Annotated, Any, Literal

import pydantic
import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.checks import (
    MAX_CHOICES,
    MAX_CHOICES_BYTES,
    MAX_EBNF_BYTES,
    MAX_REGEX_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    check_constraint,
)
from espalier.runtime.grammar.derive import derived
from espalier.runtime.grammar.walk import Acceptance
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex


def nested(depth: int) -> str:
    return '{"type":"array","items":' * (depth - 1) + "{}" + "}" * (depth - 1)


REFUSED: list[tuple[Constraint, str, str]] = [
    (JsonSchema("INVALID"), "json_schema", "not valid JSON"),
    (JsonSchema(""), "json_schema", "not valid JSON"),
    (JsonSchema('{"type":"string"'), "json_schema", "not valid JSON"),
    (JsonSchema('{"const":NaN}'), "json_schema", "NaN"),
    (JsonSchema('{"const":-Infinity}'), "json_schema", "-Infinity"),
    (JsonSchema('{"const":' + "9" * 5000 + "}"), "json_schema", "digits"),
    (JsonSchema('{"type":"string","type":"null"}'), "json_schema", "'type' stands twice"),
    (JsonSchema('{"properties":{"a":{"x":1,"x":1}}}'), "json_schema", "'x' stands twice"),
    (JsonSchema('{"const":"a\0b"}'), "json_schema", "NUL"),
    (JsonSchema('{"const":"\ud800"}'), "json_schema", "Unicode"),
    (JsonSchema('{"const":"\\ud800"}'), "json_schema", "surrogate"),
    (JsonSchema(nested(MAX_SCHEMA_DEPTH + 1)), "json_schema", "101 levels"),
    (JsonSchema("[" * 40_000), "json_schema", "40000 levels"),
    (JsonSchema(" " * MAX_SCHEMA_BYTES + "{}"), "json_schema", "bytes"),
    (Regex("a\0b"), "regex", "NUL"),
    (Regex("\udfff"), "regex", "Unicode"),
    (Regex("é" * (MAX_REGEX_BYTES // 2 + 1)), "regex", "bytes"),
    (Ebnf('root ::= "\0"'), "ebnf", "NUL"),
    (Ebnf("\ud800"), "ebnf", "Unicode"),
    (Ebnf(" " * (MAX_EBNF_BYTES + 1)), "ebnf", "bytes"),
    (Choice(()), "choices", "empty"),
    (Choice(("a", "b\0")), "choices", "NUL"),
    (Choice(("a", "\ud83d")), "choices", "Unicode"),
    (Choice(("a",) * (MAX_CHOICES + 1)), "choices", str(MAX_CHOICES)),
    (Choice(("x" * (MAX_CHOICES_BYTES // 2), "y" * MAX_CHOICES_BYTES)), "choices", "bytes"),
    (Choice(("x" * MAX_CHOICES_BYTES, "y")), "choices", "bytes"),
]


@pytest.mark.parametrize(("constraint", "param", "words"), REFUSED, ids=lambda v: repr(v)[:40])
def test_refused(constraint: Constraint, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        check_constraint(constraint)
    assert refused.value.param == param
    assert len(str(refused.value)) < 500


NOT_ENFORCED: list[tuple[object, str]] = [
    ("INVALID", "at #: "),
    ([], "at #: "),
    ({"type": "foo"}, "at #: .*no such type: 'foo'"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "at #: 'uniqueItems' .* leave it out"),
    (
        {"type": "array", "items": {"uniqueItems": True, "type": "array"}},
        "at #/items: 'uniqueItems",
    ),
    ({"properties": {"a/b~c": {"$ref": 5}}}, "at #/properties/a~1b~0c: '\\$ref' is a string"),
    ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "leads nowhere"),
    ({"$ref": "https://example.com/schema"}, "'\\$ref': .* nothing is fetched"),
    ({"$ref": "#anchor"}, "leads nowhere"),
    ({"anyOf": [{"$ref": "#/anyOf/1"}]}, "at #/anyOf/0: .*leads nowhere"),
    ({"type": "string", "pattern": "a\\Zb"}, r"'pattern': .* at position 2: the escape \\Z"),
    ({"type": "string", "pattern": "("}, r"'pattern': .* at position 1: missing"),
    ({"oneOf": [{"type": "string"}] * 257}, "too many ways"),
    ({"const": 10**500}, "digits"),
    (False, "nothing is valid against it"),
    ({"enum": []}, "nothing is valid against it"),
    ({"$ref": "#"}, "nothing is valid against it"),
    ({"not": {}}, "nothing is valid against it"),
    ({"type": "integer", "const": True}, "nothing is valid against it"),
    ({"enum": ["a"], "minLength": 3}, "nothing is valid against it"),
    ({"type": "string", "minLength": 5, "maxLength": 1}, "nothing is valid against it"),
    ({"type": "string", "format": "date", "maxLength": 1}, "nothing is valid against it"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "nothing is valid against it"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "nothing is valid against it"),
]


@pytest.mark.parametrize(("schema", "words"), NOT_ENFORCED, ids=lambda v: str(v)[:50])
def test_what_can_not_be_enforced_is_refused_by_pointer_and_keyword(
    schema: object, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        derived(JsonSchema(json.dumps(schema)))
    assert refused.value.param == "json_schema"
    assert len(str(refused.value)) < 500


OTHERS_REFUSED: list[tuple[Regex, str]] = [
    (Regex("("), "at position 1: missing"),
    (Regex("...("), "at position 4"),
    (Regex("[z-a]"), "at position 2: .* out of order"),
    (Regex("(?<!a)b"), "look-behind is not supported"),
    (Regex(r"(a)\1"), "back-references are not supported"),
    (Regex(r"\bab"), "word boundaries are not supported"),
    (Regex("(?i)a"), "flags"),
    (Regex("a++"), "at position 3: nothing to repeat"),
    (Regex("(" * 3000 + "a" + ")" * 3000), "nested more than"),
    (Regex("(?=a)"), "no text at all matches"),
    (Regex("[]"), "no text at all matches"),
]


@pytest.mark.parametrize(("constraint", "words"), OTHERS_REFUSED, ids=lambda v: str(v)[:40])
def test_patterns_are_refused_at_their_position(constraint: Regex, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        derived(constraint)
    assert refused.value.param == "regex"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a|b$", ["a", "b"], ["ab", ""]),
        ("x.y", ["xzy", "x.y"], ["x\ny", "xy"]),
        (r"[^\d.]+\.", ["q.", "ab."], ["1.", "."]),
        ("^$", [""], ["a"]),
        (r"\$\^[.$]", ["$^.", "$^$"], ["$^a"]),
        ("(ab|abc)*c?", ["", "ababcc"], ["ba", "cc"]),
    ],
)
def test_a_regex_is_matched_by_the_whole_text(pattern: str, yes: list[str], no: list[str]) -> None:
    accepting = Acceptance(derived(Regex(pattern)).grammar)
    assert all(map(accepting.accepts, yes)) and not any(map(accepting.accepts, no))


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=0, le=9, multiple_of=3)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, pydantic.Field(min_length=1, max_length=9)]


class Owner(pydantic.BaseModel):
    """A record with everything that pydantic writes for common types."""

    age: int | None = None
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    pets: list[Cat | Dog]
    scores: dict[str, float]
    pair: tuple[int, str]
    parent: Owner | None = None
    code: Annotated[str, pydantic.Field(pattern=r"^[A-Z]{2}\d+$")]


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


TYPES: list[Any] = [Owner, Point, list[Point], Literal["a", 1, None], int | str, bool, Any]
ACCEPTED: list[Constraint] = [
    *(JsonSchema(json.dumps(pydantic.TypeAdapter(kind).json_schema())) for kind in TYPES),
    JsonSchema("true"),
    JsonSchema(nested(MAX_SCHEMA_DEPTH)),
    JsonSchema('{"const":"{[\\"{[","description":"]]}}"}'),
    JsonSchema('{"oneOf":[{"type":"string"},{"type":["integer","null"]}]}'),
    JsonSchema('{"properties":{"required":{"type":"string"},"not":{"type":"null"}}}'),
    JsonSchema('{"type":"array","items":{"$ref":"#"}}'),
    JsonSchema(json.dumps({"oneOf": [{"const": i} for i in range(2000)]})),
    JsonSchema('{"anyOf":[{"type":"null"},{"$ref":"#/anyOf/0"}]}'),
    Regex(r"^a|b$"),
    Ebnf('root ::= "a"'),
    Choice(("",)),
    Choice(("a", "a", "北京", '"\\')),
    Choice(("x" * (MAX_CHOICES_BYTES - 1), "y")),
]


@pytest.mark.parametrize("constraint", ACCEPTED, ids=lambda constraint: repr(constraint)[:60])
def test_accepted(constraint: Constraint) -> None:
    check_constraint(constraint)


LARGE: dict[str, object] = {
    "a oneOf of values": {"oneOf": [{"const": i} for i in range(6000)]},
    "many schemas below a long name": {"properties": {"x" * 60_000: {"anyOf": [{}] * 15_000}}},
}


@pytest.mark.parametrize("schema", LARGE.values(), ids=LARGE.keys())
def test_the_work_grows_with_the_size_of_a_schema_alone(schema: object) -> None:
    """In function calls and in bytes: each schema with each would be 18 million, each with the
    long name 900 MB."""
    constraint = JsonSchema(json.dumps(schema))
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    tracemalloc.start()
    sys.setprofile(count)
    try:
        check_constraint(constraint)
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert calls < 3_000_000 and peak < 32 << 20
