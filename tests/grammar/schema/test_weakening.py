"""What can't be enforced is left out and named; what is no schema is still refused."""

from __future__ import annotations

import json

import pytest

from espalier.runtime.grammar.schema import Malformed, TooComplex, Unenforceable, schema_grammar
from espalier.runtime.grammar.schema.weakening import MAX_LEFT_OUT, weakened
from espalier.runtime.grammar.validation import validate_json
from espalier.runtime.grammar.walk import Acceptance

NOT_ENUMERABLE = {"type": "string"}
UNREADABLE = "(?<=a)b"  # as a pattern


def accepts(schema: object, text: str, *, open_objects: bool = False) -> bool:
    found, _ = weakened(json.dumps(schema), open_objects=open_objects)
    return Acceptance(found.grammar).accepts(text)


def left_out(schema: object) -> tuple[str, ...]:
    return weakened(json.dumps(schema))[1]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}, ()),
        ({"items": NOT_ENUMERABLE, "uniqueItems": True}, ("#: uniqueItems is not enforced",)),
        (
            {"properties": {"a/b": {"items": NOT_ENUMERABLE, "uniqueItems": True}}},
            ("#/properties/a~1b: uniqueItems is not enforced",),
        ),
        (
            {"items": {"pattern": UNREADABLE}, "prefixItems": [{"$ref": "http://x/y"}]},
            ("#/prefixItems/0: $ref is not enforced", "#/items: pattern is not enforced"),
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"pattern": UNREADABLE}}},
            ("#/$defs/a: pattern is not enforced",),
        ),
        ({"not": {"pattern": UNREADABLE}}, ("#: not is not enforced",)),
        (
            {"items": {"oneOf": [{"pattern": UNREADABLE}, {"type": "null"}]}},
            ("#/items: oneOf is not enforced",),
        ),
        (
            {"if": {"pattern": UNREADABLE}, "then": {"type": "null"}},
            ("#: if is not enforced",),
        ),
        (
            {"properties": {"not": {"pattern": UNREADABLE}}},
            ("#/properties/not: pattern is not enforced",),
        ),
        (
            {"patternProperties": {UNREADABLE: {}}, "additionalProperties": False},
            ("#: patternProperties is not enforced",),
        ),
    ],
    ids=str,
)
def test_what_is_left_out_is_named(schema: object, named: tuple[str, ...]) -> None:
    assert set(left_out(schema)) == set(named)
    if named:
        with pytest.raises(Unenforceable):
            schema_grammar(json.dumps(schema))


def test_the_rest_is_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": NOT_ENUMERABLE, "uniqueItems": True},
            "size": {"enum": ["s", "m"]},
        },
        "required": ["tags", "size"],
    }
    assert accepts(schema, '{"tags":["a","a"],"size":"m"}')
    assert not accepts(schema, '{"tags":["a",1],"size":"m"}')
    assert not accepts(schema, '{"tags":["a"],"size":"x"}')


def test_the_one_that_is_left_out_allows_what_the_schema_does() -> None:
    schema = {"patternProperties": {UNREADABLE: {"type": "null"}}, "additionalProperties": False}
    assert accepts(schema, '{"ab":null}') and accepts(schema, "{}")
    negated = {"not": {"pattern": UNREADABLE}}
    assert accepts(negated, '"cb"') and accepts(negated, '"ab"')


def test_a_reference_into_what_was_left_out_is_left_out_too() -> None:
    """The alternatives of a `oneOf` that goes are known by nobody any more."""
    schema = {
        "properties": {
            "a": {"oneOf": [{"pattern": UNREADABLE}, {"type": "null"}]},
            "b": {"$ref": "#/properties/a/oneOf/1"},
        }
    }
    assert len(left_out(schema)) == 2
    assert accepts(schema, '{"a":1,"b":2}')


def test_too_much_of_it_leaves_any_json() -> None:
    schema = {
        "properties": {f"k{i}": {"pattern": UNREADABLE} for i in range(MAX_LEFT_OUT + 1)},
        "type": "object",
    }
    assert left_out(schema) == ("#: nothing of the schema is enforced",)
    for text in ("[1]", '{"k1":{"x":null}}', '"a"'):
        assert accepts(schema, text)


def test_what_is_too_complex_is_left_out_as_a_whole() -> None:
    counted = {"contains": {"const": 1}, "minContains": 100_000}
    schema = {"properties": {"a": counted, "b": {"type": "null"}}, "required": ["a", "b"]}
    with pytest.raises(TooComplex):
        schema_grammar(json.dumps(schema))
    assert left_out(schema) == ("#/properties/a: nothing of it is enforced",)
    assert accepts(schema, '{"a":{"x":[2]},"b":null}')
    assert not accepts(schema, '{"a":{"x":[2]},"b":1}')


@pytest.mark.parametrize("open_objects", [True, False])
def test_open_objects_are_still_a_choice(open_objects: bool) -> None:
    schema = {"properties": {"a": {"pattern": UNREADABLE}}}
    assert accepts(schema, '{"b":1}', open_objects=open_objects) is open_objects


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3},
        {"items": {"pattern": UNREADABLE}, "type": "nothing"},
        {"$ref": "#/nowhere"},
        [1],
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(Malformed):
        weakened(json.dumps(schema))


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"enum": []}], ids=str)
def test_what_nothing_satisfies_is_refused(schema: object) -> None:
    with pytest.raises(Unenforceable, match="nothing is valid"):
        weakened(json.dumps(schema))
    assert validate_json(json.dumps(schema), "1").valid is False
