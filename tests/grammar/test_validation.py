"""The exact validator: exact numbers, hostile input, older drafts, and what it can't decide."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from espalier.runtime.grammar.validation import Verdict, validate_json


def verdict(schema: Any, text: str) -> Verdict:
    found = validate_json(schema if isinstance(schema, str) else json.dumps(schema), text)
    assert (found.trouble == "") is (found.valid is True), found
    return found


def valid(schema: Any, text: str) -> bool | None:
    return verdict(schema, text).valid


# -- the text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        "01",
        "1.",
        "+1",
        ".5",
        "NaN",
        "-Infinity",
        "'a'",
        '"\t"',
        '"\\x41"',
        "1 2",
        "nul",
        "\ufeff1",
        "１",
        "\u00a01",
    ],
)
def test_what_is_not_json_is_a_violation(text: str) -> None:
    found = verdict(True, text)
    assert found.valid is False and found.trouble.startswith("not JSON: ")


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '[{"b":{"a":1,"\\u0061":2}}]', '{"":0,"x":1,"":0}']
)
def test_a_key_twice_is_a_violation(text: str) -> None:
    found = verdict(True, text)
    assert found.valid is False and "stands twice" in found.trouble


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"a\udfff":1}', r'["\ude00\ud83d"]', '"\ud800"'])
def test_a_lone_surrogate_is_a_violation(text: str) -> None:
    assert verdict(True, text) == Verdict(False, "a string has a lone surrogate")


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert valid({"maxLength": 1}, r'"\ud83d\ude00"') is True


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_endless_nesting_is_not_decided(text: str) -> None:
    assert verdict(True, text).valid is None


def test_deep_values_of_a_recursive_schema_are_decided() -> None:
    either = [{"type": "integer"}, {"items": {"$ref": "#/$defs/a"}, "type": "array"}]
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": either}}}
    usual = sys.getrecursionlimit()
    for inner, is_valid in (("1", True), ("null", False)):
        assert valid(schema, "[" * 800 + inner + "]" * 800) is is_valid
    assert sys.getrecursionlimit() == usual


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text", "is_valid"),
    [
        ('{"const":1}', "1.0", True),
        ('{"const":1}', "true", False),
        ('{"enum":[0,false]}', "-0.0", True),
        ('{"const":[1,{"a":2.0}]}', '[1.0,{"a":2}]', True),
        ('{"const":{"a":false}}', '{"a":0}', False),
        ('{"const":9007199254740993}', "9007199254740992", False),
        ('{"const":0.1}', "0.1000000000000000055511151231257827", False),
        ('{"const":1e400}', "1" + "0" * 400, True),
        ('{"type":"integer"}', "1e400", True),
        ('{"type":"integer"}', "1.50e1", True),
        ('{"type":"integer"}', "1e-400", False),
        ('{"type":"integer"}', "100000000000000000000000000000000000000.5", False),
        ('{"minimum":9007199254740993}', "9007199254740992", False),
        ('{"exclusiveMaximum":0.3}', "0.3000000000000000000000000001", False),
        ('{"exclusiveMaximum":0.3}', "0.2999999999999999999999999999", True),
        ('{"multipleOf":0.01}', "4.35", True),
        ('{"multipleOf":0.01}', "4.351", False),
        ('{"multipleOf":1e-8}', "12391239123", True),
        ('{"multipleOf":0.3}', "1e999999999", False),
        ('{"multipleOf":0.5}', "1e999999999", True),
        ('{"multipleOf":1e999999999}', "1", False),
        ('{"multipleOf":1e999999999}', "0", True),
        ('{"multipleOf":7}', "7" * 6000, True),
        ('{"maximum":1e999999999}', "1e999999998", True),
        ('{"uniqueItems":true}', "[1,1.0]", False),
        ('{"uniqueItems":true}', '[1,true,[1],[true],{},[],0,false,null,"1"]', True),
        ('{"uniqueItems":true}', '[{"a":1,"b":2},{"b":2,"a":1}]', False),
        ('{"minLength":2.0,"maxItems":1e1}', '"ab"', True),
    ],
)
def test_numbers_are_exact(schema: str, text: str, is_valid: bool) -> None:
    assert valid(schema, text) is is_valid


decimals = st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
    lambda number: abs(number.adjusted()) < 60
)


@settings(deadline=None)
@given(decimals, decimals.filter(lambda number: number > 0))
def test_multiples_are_those_of_fractions(value: Any, step: Any) -> None:
    is_multiple = (Fraction(value) / Fraction(step)).denominator == 1
    assert valid(f'{{"multipleOf":{step}}}', str(value)) is is_multiple


@settings(deadline=None)
@given(decimals, decimals)
def test_limits_are_those_of_fractions(value: Any, limit: Any) -> None:
    mine, theirs = Fraction(value), Fraction(limit)
    assert valid(f'{{"minimum":{limit}}}', str(value)) is (mine >= theirs)
    assert valid(f'{{"exclusiveMinimum":{limit}}}', str(value)) is (mine > theirs)
    assert valid(f'{{"const":{limit}}}', str(value)) is (mine == theirs)


def test_an_exponent_beyond_all_bounds_is_not_decided() -> None:
    assert "too large" in verdict(True, f"1e{'9' * 30}").trouble


# -- patterns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "is_valid"),
    [
        ("a", "bab", True),
        ("^a$", "a\n", False),
        ("^.$", "\u2028", False),
        ("^.$", "😀", True),
        (r"^\d$", "٣", False),
        (r"^\w$", "é", False),
        (r"^\s$", "\ufeff", True),
        (r"^\s$", "\u200b", False),
        (r"^[\s\S]$", "\n", True),
        (r"^[^\S]$", "\u3000", True),
        (r"^[\d-x]$", "-", True),
        (r"^\u00e9\x41\u{1f600}\ud83d\ude00$", "éA😀😀", True),
        (r"^\cJ\0\t\/\-\.$", "\n\0\t/-.", True),
        (r"^[\b]$", "\b", True),
        (r"^(?!con$)(?=.*\d)[a-z\d]+$", "c0n", True),
        (r"^(?!con$)(?=.*\d)[a-z\d]+$", "con", False),
        ("^a{2000}$", "a" * 2000, True),
        ("^a{2000}$", "a" * 1999, False),
        ("^[[]$", "[", True),
        ("^[]$", "a", False),
        ("^[^]$", "\n", True),
        ("^a{2}$", "aa", True),
        ("^a{,2}$", "a{,2}", True),
        ("^{a}$", "{a}", True),
        ("^x]$", "x]", True),
        (r"^(?<year>\d{4})-(?:0[1-9])$", "2024-05", True),
        (r"^\p{Letter}\p{Ll}\P{Lu}$", "éαb", True),
        ("(a+)+b", "a" * 5000, False),
    ],
)
def test_patterns_mean_what_they_do_in_ecmascript(pattern: str, text: str, is_valid: bool) -> None:
    assert valid({"pattern": pattern}, json.dumps(text)) is is_valid
    assert valid({"patternProperties": {pattern: False}}, json.dumps({text: 1})) is not is_valid


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bfoo",
        "(?<!a)b",
        r"(a)\1",
        r"\k<a>",
        "(?i)a",
        r"\z",
        r"\Qa\E",
        "a++",
        "(",
        "[a",
        "\\",
        "*",
    ]
    + [r"\u12", r"\ud800", r"\u{110000}", "(?P<a>b)", r"\p{Nonsense}", r"\cé"],
)
def test_patterns_that_can_not_be_matched_are_not_decided(pattern: str) -> None:
    assert "pattern" in verdict({"pattern": pattern}, '"a"').trouble
    assert valid({"pattern": pattern}, '"a"') is None


# -- schemas -----------------------------------------------------------------------------------

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "text", "is_valid"),
    [
        ({"minimum": 1, "exclusiveMinimum": True}, "1", False),
        ({"minimum": 1, "exclusiveMinimum": False}, "1", True),
        ({"maximum": 1, "exclusiveMaximum": True}, "1.0", False),
        ({"items": [{"type": "string"}], "additionalItems": False}, '["a"]', True),
        ({"items": [{"type": "string"}], "additionalItems": False}, '["a",1]', False),
        ({"items": [{"type": "string"}], "additionalItems": {"type": "null"}}, '["a",1]', False),
        ({"items": [{"type": "string"}]}, '["a",1]', True),
        ({"items": {}, "additionalItems": False}, "[1]", True),
        ({"dependencies": {"a": ["b"]}}, '{"a":1}', False),
        ({"dependencies": {"a": {"required": ["b"]}}}, '{"a":1}', False),
        ({"dependencies": {"a": {"required": ["b"]}}}, '{"b":1}', True),
        ({"$schema": DRAFT_7, "$ref": "#/definitions/a", "type": "null"}, "1", True),
        ({"$ref": "#/definitions/a", "type": "null"}, "1", False),
        ({"$schema": DRAFT_7, "allOf": [{"$ref": "#a"}]}, "1", True),
        ({"$schema": DRAFT_4, "allOf": [{"$ref": "#b"}]}, "1", True),
        ({"$schema": DRAFT_4, "id": "http://x/y", "$ref": "#/definitions/a"}, "1", True),
        ({"$schema": DRAFT_7, "properties": {"$ref": {"type": "null"}}}, '{"$ref":1}', False),
        ({"$schema": "http://json-schema.org/draft-06/schema", "const": 1}, "2", False),
        ({"$schema": "http://x/mine", "$ref": "#/definitions/a", "type": "null"}, "1", False),
    ],
)
def test_older_drafts_mean_what_they_meant(schema: Any, text: str, is_valid: bool) -> None:
    definitions = {"a": {"$id": "#a", "type": "integer"}, "b": {"id": "#b", "type": "integer"}}
    assert valid({"definitions": definitions, **schema}, text) is is_valid


def test_a_recursive_reference_is_extended_from_outside() -> None:
    tree = {
        "$id": "http://x/tree",
        "$recursiveAnchor": True,
        "properties": {"children": {"items": {"$recursiveRef": "#"}}},
    }
    strict = {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$id": "http://x/strict",
        "$recursiveAnchor": True,
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    assert valid(strict, '{"children":[{"children":[]}]}') is True
    assert valid(strict, '{"children":[{"chidlren":[]}]}') is False


@pytest.mark.parametrize(
    "uri",
    [DRAFT_4, DRAFT_7, "http://json-schema.org/draft-06/schema#"]
    + [f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")],
)
def test_published_meta_schemas_are_known(uri: str) -> None:
    assert valid({"$ref": uri}, '{"properties":{"a":{"minLength":1}}}') is True
    assert valid({"$ref": uri}, '{"properties":{"a":{"minLength":-1}}}') is False


@pytest.mark.parametrize(
    ("schema", "trouble"),
    [
        ("{", "the schema can't be read"),
        ('{"a":1,"a":1}', "stands twice"),
        ("1", "is not a schema"),
        ({"properties": []}, "must be an object"),
        ({"required": True}, "must be an array"),
        ({"required": [1]}, "must be a string"),
        ({"type": 1}, "must be an array"),
        ({"allOf": {}}, "must be an array"),
        ({"anyOf": [1]}, "is not a schema"),
        ({"minLength": -1}, "must be a count"),
        ({"maxItems": 1.5}, "must be a count"),
        ({"minimum": "1"}, "must be a number"),
        ({"multipleOf": 0}, "greater than 0"),
        ({"pattern": 1}, "must be a string"),
        ({"uniqueItems": 1}, "must be a boolean"),
        ({"$ref": 1}, "must be a string"),
        ({"$ref": "http://x/y"}, "leads out of the schema"),
        ({"$ref": "http://[x"}, "the reference"),
        ({"$id": "http://x/y", "not": {"$id": "http://[x"}}, "the identifier"),
        ({"$ref": "#/nowhere"}, "names nothing"),
        ({"$ref": "#nowhere"}, "names nothing"),
        ({"$ref": "#/allOf/01", "allOf": [True, True]}, "names nothing"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, "leads back to itself"),
        ({"$recursiveRef": "#a"}, "must be '#'"),
        ({"allOf": [{"$ref": "#/allOf/1"}, {"$ref": "#/allOf/0"}]}, "leads back to itself"),
    ],
)
def test_what_is_no_schema_is_not_decided(schema: Any, trouble: str) -> None:
    for text in ("{}", "[]", '"a"', "1"):
        found = verdict(schema, text)
        assert found.valid is None and trouble in found.trouble, found


def test_a_violation_says_where_and_which() -> None:
    schema = {"properties": {"a/b": {"items": {"minimum": 5}}}}
    assert verdict(schema, '{"a/b":[7,4]}') == Verdict(False, "/a~1b/1: minimum 5")


# -- against others ----------------------------------------------------------------------------

scalars = st.sampled_from(["null", "true", "0", "1", "1.0", "-1.5", '""', '"a"', '"ab"', '"b"'])
names = st.sampled_from(["a", "b", "ab"])
instances = st.recursive(
    scalars.map(json.loads),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
counts = st.integers(0, 2)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of all keywords, with these as subschemas."""
    many, named = st.lists(inner, min_size=1, max_size=2), st.dictionaries(names, inner, max_size=2)
    types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
    fields: dict[str, st.SearchStrategy[Any]] = {
        "type": types | st.lists(types, min_size=1, unique=True, max_size=2),
        "const": instances,
        "enum": st.lists(instances, min_size=1, max_size=3),
        "minimum": counts,
        "exclusiveMaximum": counts,
        "multipleOf": st.sampled_from([1, 0.5, 2]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(["a", "^a", "b$", "^$"]),
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "minProperties": counts,
        "maxProperties": counts,
        "required": st.lists(names, unique=True, max_size=2),
        "dependentRequired": st.dictionaries(names, st.lists(names, unique=True, max_size=2)),
        "dependentSchemas": named,
        "allOf": many,
        "anyOf": many,
        "oneOf": many,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "prefixItems": many,
        "items": inner,
        "contains": inner,
        "minContains": counts,
        "maxContains": counts,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
    }
    chosen = st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: fields[key] for key in keys}))


leaves = st.booleans() | st.just({"type": "integer"}) | st.just({"minLength": 1})
schemas = st.recursive(leaves, keywords, max_leaves=8)


@settings(deadline=None)
@given(schemas.filter(lambda schema: isinstance(schema, dict)), instances)
def test_jsonschema_says_the_same(schema: dict[str, Any], instance: Any) -> None:
    whole = {"$defs": {"x": {"type": ["integer", "object"]}, "y": {"minItems": 1}}, **schema}
    expected = cast("Callable[[Any], bool]", Draft202012Validator(whole).is_valid)(instance)  # pyright: ignore[reportUnknownMemberType]
    assert valid(whole, json.dumps(instance)) is expected


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["#", "#a", "#/x", "http://x/y", "string", "(", "[", "date", "uri"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(sorted(Draft202012Validator.VALIDATORS)), inner
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(anything, anything)
def test_nothing_raises(schema: Any, instance: Any) -> None:
    assert validate_json(json.dumps(schema), json.dumps(instance)).valid in (True, False, None)


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_text_raises(schema: str, text: str) -> None:
    assert validate_json(schema, text).valid in (True, False, None)
