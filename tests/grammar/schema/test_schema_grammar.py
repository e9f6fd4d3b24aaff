"""What the grammars of schemas accept, and that all they derive is valid."""

import json
import random
from typing import Any

import pytest

from espalier.runtime.grammar.schema.grammar import acceptance, schema_grammar
from espalier.runtime.grammar.schema.trouble import Malformed, SchemaTrouble, Unenforceable
from espalier.runtime.grammar.validation import validate_json
from tests.derivations import Derivations

# Of each schema: what it accepts, what it does not. All in compact layout.
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, "a", None, {"a": [1, {"b": {}}]}], []),
    ({"type": "integer"}, [0, -5, 12], ["1", 1.5, None]),
    ({"type": "number"}, [0, -5, 1.5, 1e300], ["1", None]),
    ({"type": ["string", "null"]}, ["", 'a"\\\n', None], [1, True]),
    ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13]),
    ({"type": "integer", "exclusiveMinimum": 2, "multipleOf": 3}, [3, 300], [0, 2, 4]),
    ({"type": "number", "minimum": 0.5, "multipleOf": 0.25}, [0.5, 0.75, 2], [0.25, 0.6]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é\n", "a😀b"], ["a", "abcd"]),
    ({"type": "string", "pattern": "b+$"}, ["abb", "b"], ["ba", ""]),
    ({"type": "string", "pattern": "^a", "maxLength": 2}, ["a", "ab"], ["b", "abc"]),
    ({"enum": [1, "a", None, {"x": [1]}]}, [1, "a", None, {"x": [1]}], [2, "b", {"x": [2]}]),
    ({"enum": [1, "a"], "type": "string"}, ["a"], [1]),
    ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, {}]),
    ({"minLength": 3}, ["abc", 1, None, [], {}], ["ab"]),
    ({"not": {"type": "string"}}, [1, None, []], ["a"]),
    ({"not": {"const": 1}}, [2, 10, "1", [1]], [1]),
    ({"not": {"enum": ["a", "b"]}, "type": "string"}, ["c", "ab", ""], ["a", "b"]),
    ({"not": {"const": {"a": 1}}}, [{"a": 2}, {}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"], [1, None]]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, "a"]], [[], [1, 2, 3]]),
    (
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"], "no array"],
        [["a"], [1, "a", 1]],
    ),
    ({"contains": {"const": 5}}, [[5], [1, 5, 2], "x"], [[], [1, 2]]),
    (
        {"contains": {"const": 5}, "minContains": 2, "maxContains": 3},
        [[5, 5], [1, 5, 5, 5]],
        [[5], [5, 5, 5, 5]],
    ),
    ({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, [[], [3, 1]], [[1, 1]]),
    ({"items": {"type": "boolean"}, "uniqueItems": True}, [[True, False]], [[True, True]]),
    (
        {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"]},
        [{"b": 1}, {"a": 1, "b": []}, 3],
        [{}, {"a": 1}, {"a": "x", "b": 1}],
    ),
    ({"required": ["x"]}, [{"x": 1}, {"x": None, "y": 2}, 1], [{}, {"y": 1}]),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1, "b": 2}],
        [{"a": "x"}],
    ),
    (
        {"patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x_a": 1}],
        [{"y": 1}, {"x_a": "s"}],
    ),
    (
        {"properties": {"foo": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [{"foo": 1, "bar": "x"}, {"bar": "x"}],
        [{"foo": "x"}, {"bar": 1}],
    ),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, {}], [{"abc": 1}]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ({"type": "object", "minProperties": 2}, [{"foo": 1, "bar": 2}], [{"a": 1}, {}]),
    (
        {"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1},
        [{}, {"a": 1}, {"c": 1}],
        [{"a": 1, "b": 2}],
    ),
    (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    ({"anyOf": [{"type": "integer"}, {"minLength": 2}]}, [1, "ab", None], ["a"]),
    ({"anyOf": [{"const": 1}, {"const": "a"}], "type": "string"}, ["a"], [1, "b"]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, "a"], [3, 1.5]),
    (
        {
            "oneOf": [
                {"properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t"]},
                {"properties": {"t": {"const": "b"}, "y": {"type": "string"}}, "required": ["t"]},
            ],
            "type": "object",
        },
        [{"t": "a", "x": 1}, {"t": "b", "y": "s"}, {"t": "b"}],
        [{"t": "c"}, {"t": "a", "x": "s"}, {}],
    ),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}], "type": "integer"}, [1, 3], [0, 4]),
    (
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
        [{"a": 2}, {"b": 1}, {"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    (
        {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
        [[], [[], [[]]]],
        [1, [1], [[1]]],
    ),
    (
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 2}, {}],
        [{"c": 1}, {"a": "x"}],
    ),
    (
        {"prefixItems": [{"type": "string"}], "unevaluatedItems": {"type": "integer"}},
        [["a"], ["a", 1, 2]],
        [["a", "b"]],
    ),
    ({"not": {"additionalProperties": False, "properties": {"a": {}}}}, [{"b": 1}], [{"a": 1}, 3]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x"]),
]


def texts(values: list[Any]) -> list[str]:
    return [json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda v: str(v)[:50])
def test_the_grammar_accepts_what_the_schema_does(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    accepting = acceptance(json.dumps(schema), open_objects=True)
    assert [text for text in texts(valid) if not accepting.accepts(text)] == []
    assert [text for text in texts(invalid) if accepting.accepts(text)] == []


@pytest.mark.parametrize("schema", [schema for schema, _, _ in CASES], ids=lambda v: str(v)[:50])
@pytest.mark.parametrize("open_objects", [False, True])
def test_what_is_derived_is_valid(schema: Any, open_objects: bool) -> None:
    text = json.dumps(schema)
    found = schema_grammar(text, open_objects=open_objects)
    derivations = Derivations(found.grammar, random.Random(0))
    for _ in range(40):
        output = derivations.text()
        verdict = validate_json(text, output)
        assert verdict.valid is True, (output, verdict)


def test_an_escaped_spelling_of_a_declared_key_is_no_other_key() -> None:
    schema = {"properties": {"foo": {"type": "integer"}}, "type": "object"}
    accepting = acceptance(json.dumps(schema), open_objects=True)
    assert not accepting.accepts(r'{"\u0066oo":"x"}')


def test_lone_surrogates_are_no_text() -> None:
    accepting = acceptance('{"type":"string"}')
    assert accepting.accepts(r'"\ud83d\ude00"')
    assert not accepting.accepts(r'"\ud83d"')
    assert not accepting.accepts(r'"\ude00"')


def test_objects_are_closed_unless_asked() -> None:
    schema = '{"type":"object","properties":{"a":{}},"additionalProperties":true}'
    assert not acceptance(schema).accepts('{"a":1,"b":2}')
    assert acceptance(schema, open_objects=True).accepts('{"a":1,"b":2}')
    assert acceptance('{"type":"object"}').accepts('{"b":2}')
    assert "objects have no keys but those that the schema names" in schema_grammar(schema).notes


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"properties": {"a": {"$ref": "https://example.com/x"}}}, "#/properties/a", "$ref"),
        ({"items": {"pattern": "(a)\\1"}}, "#/items", "pattern"),
        ({"type": "array", "uniqueItems": True}, "#", "uniqueItems"),
    ],
)
def test_what_can_not_be_enforced_is_refused_by_name(
    schema: Any, pointer: str, keyword: str
) -> None:
    with pytest.raises(Unenforceable) as caught:
        schema_grammar(json.dumps(schema))
    assert (str(caught.value.pointer), caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(
    "schema",
    [
        "3",
        '{"type":"strin"}',
        '{"minLength":-1}',
        '{"$ref":"#/$defs/x"}',
        '{"required":"a"}',
        '{"anyOf":[]}',
        '{"a":1,"a":2}',
        '{"properties":[]}',
        '{"multipleOf":0}',
        '{"const":"\\ud800"}',
        '{"minimum":NaN}',
        "{",
    ],
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(Malformed):
        schema_grammar(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        False,
    ],
)
def test_a_schema_that_nothing_is_valid_against_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaTrouble, match="nothing is valid"):
        schema_grammar(json.dumps(schema))
