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
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex


def nested(depth: int) -> str:
    return '{"type":"array","items":' * (depth - 1) + "{}" + "}" * (depth - 1)


REFUSED: list[tuple[Constraint, str, str]] = [
    (JsonSchema("INVALID"), "json_schema", "not valid JSON"),
    (JsonSchema('"INVALID"'), "json_schema", "an object or a boolean"),
    (JsonSchema("[]"), "json_schema", "an object or a boolean"),
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


UNENFORCED: list[tuple[dict[str, Any], str]] = [
    ({"format": "uuid"}, "#: 'format' without a 'type'"),
    ({"minLength": 2}, "'minLength' without a 'type'"),
    ({"minimum": 2}, "'minimum' without a 'type'"),
    ({"required": []}, "'required' without a 'type'"),
    ({"properties": {}, "minLength": 1}, "without a 'type'"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "array", "contains": {}}, "'contains'"),
    ({"not": {}}, "'not'"),
    ({"if": {}, "then": {}}, "'if'"),
    ({"allOf": [{}, {}]}, "'allOf'"),
    ({"type": "object", "dependentRequired": {}}, "'dependentRequired'"),
    ({"type": "object", "required": ["a"]}, "'a', which is not in 'properties'"),
    ({"type": "string", "pattern": "a", "minLength": 1}, "'minLength' beside 'pattern'"),
    ({"type": "string", "pattern": "a", "format": "date"}, "'pattern' beside 'format'"),
    ({"type": "string", "format": "date", "maxLength": 1}, "'maxLength' beside 'format'"),
    ({"type": "string", "format": "regex"}, "'regex'"),
    ({"type": "string", "pattern": "a\\Zb"}, r"#/pattern: .*\\Z"),
    ({"type": "object", "patternProperties": {"(^x)": {}}}, "#/patternProperties: .*an end"),
    ({"type": "number", "multipleOf": 5}, "'multipleOf'"),
    ({"type": "integer", "multipleOf": 0.5}, "'multipleOf'"),
    ({"type": "string", "enum": ["a", 1]}, "the value 1 is not of"),
    ({"type": "integer", "const": True}, "the value true is not of"),
    ({"enum": ["a"], "minLength": 3}, "'minLength' beside 'enum'"),
    ({"anyOf": [{}], "type": "object"}, "'type' beside 'anyOf'"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "minimum": 1}, "'minimum' beside '\\$ref'"),
    ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "leads nowhere"),
    ({"$ref": "https://example.com/schema"}, "only local references"),
    ({"$ref": "#anchor"}, "only local references"),
    ({"$ref": 5}, "only local references"),
    ({"$ref": "#/x/y", "x": {"y": {"not": {}}}}, "leads to no schema"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf'"),
    ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "'oneOf'"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "'oneOf'"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "'oneOf'"),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [3, 2]}]}, "'oneOf'"),
    ({"oneOf": [{"type": "string"}] * 257}, "'oneOf' has more than 256"),
    ({"anyOf": [{}], "properties": {"x" * 900: {}}}, "'properties' beside"),
    ({"properties": {"x" * 900: {"not": {}}}}, "'not'"),
    ({"anyOf": [{"$ref": "#/anyOf/00"}]}, "leads nowhere"),
    ({"anyOf": [{"$ref": "#/anyOf/1"}]}, "leads nowhere"),
    ({"type": "array", "prefixItems": [{}, {"not": {}}]}, "#/prefixItems/1: 'not'"),
    ({"type": "object", "properties": {"a/b~c": {"not": {}}}}, "#/properties/a~1b~0c: 'not'"),
    ({"type": "object", "additionalProperties": {"not": {}}}, "#/additionalProperties: 'not'"),
    ({"$defs": {"unused": {"not": {}}}}, r"#/\$defs/unused: 'not'"),
]


@pytest.mark.parametrize(("schema", "words"), UNENFORCED, ids=lambda v: str(v)[:50])
def test_a_keyword_that_would_be_dropped_is_named(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        check_constraint(JsonSchema(json.dumps(schema)))
    assert refused.value.param == "json_schema"


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
