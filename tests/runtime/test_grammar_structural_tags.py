"""Structural tags: control tokens come where the tag names them and nowhere else; schemas and
patterns inside them are those of the other constraints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import StructuralTag
from tests.fakes import BYTE_VOCAB, EOS, byte_tokens
from tests.grammar_walks import allowed_ids

CONTROLS = (257, 258, 259)
NAME = byte_tokens()[257].decode()


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(Vocabulary(tuple(byte_tokens()), (EOS, *CONTROLS), (EOS,), BYTE_VOCAB))


def wrapped(node: Any) -> StructuralTag:
    return StructuralTag(json.dumps({"type": "structural_tag", "format": node}))


def compiled(engines: Engines, node: Any) -> CompiledGrammar:
    return engines.load(compile_constraint(wrapped(node), engines))


def controls_on_the_way(engines: Engines, node: Any, tokens: Iterable[int]) -> list[set[int]]:
    """The control tokens that are allowed before each of the tokens, and after the last."""
    matcher = compiled(engines, node).engine.matcher()
    found: list[set[int]] = []
    for token_id in tokens:
        found.append(allowed_ids(matcher, BYTE_VOCAB).intersection(CONTROLS))
        assert matcher.accept(token_id), (token_id, found)
    if not matcher.is_terminated:
        found.append(allowed_ids(matcher, BYTE_VOCAB).intersection(CONTROLS))
    return found


def accepts(engines: Engines, node: Any, text: str) -> bool:
    matcher = compiled(engines, node).engine.matcher()
    return all(map(matcher.accept, text.encode())) and matcher.is_completed


STRING = {"type": "json_schema", "json_schema": {"type": "string"}}


@pytest.mark.parametrize("name", [257, NAME], ids=["id", "text"])
def test_a_named_control_token_comes_at_its_place_alone(engines: Engines, name: int | str) -> None:
    node = {"type": "sequence", "elements": [STRING, {"type": "token", "token": name}]}
    found = controls_on_the_way(engines, node, [*b'"ab"', 257])
    assert found == [set(), set(), set(), set(), {257}, set()]


def test_the_ends_of_a_tag_may_be_tokens(engines: Engines) -> None:
    ends = {"begin": {"type": "token", "token": 257}, "end": {"type": "token", "token": 258}}
    node = {"type": "tag", "content": {"type": "any_text"}, **ends}
    assert controls_on_the_way(engines, node, [257, *b"ab", 258]) == [
        {257},
        {258},
        {258},
        {258},
        set(),
    ]


def test_what_is_excluded_is_not_named(engines: Engines) -> None:
    node = {
        "type": "token_triggered_tags",
        "trigger_tokens": [257],
        "exclude_tokens": [259],
        "tags": [{"begin": {"token": 257}, "content": STRING, "end": {"token": 258}}],
    }
    matcher = compiled(engines, node).engine.matcher()
    assert 259 not in allowed_ids(matcher, BYTE_VOCAB)
    assert matcher.accept(257) and all(map(matcher.accept, b'"a"')) and matcher.accept(258)


def test_control_tokens_that_no_tag_names_never_come(engines: Engines) -> None:
    node = {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [{"begin": "<f>", "content": STRING, "end": "</f>"}],
    }
    assert not any(controls_on_the_way(engines, node, b'text <f>"a"</f> more'))


def test_schemas_say_what_they_say_anywhere_else(engines: Engines) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7}}}
    node = {"type": "tag", "begin": "<", "end": ">", "content": {"type": "json_schema"}}
    node["content"]["json_schema"] = schema  # type: ignore[index]
    assert accepts(engines, node, '<{"n":14}>') and not accepts(engines, node, '<{"n":15}>')
    assert not accepts(engines, node, '<{"x":1}>')


def test_patterns_are_those_of_the_regex_constraint(engines: Engines) -> None:
    node = {"type": "regex", "pattern": r"^(?!ab)[a-c]{2}$"}
    assert accepts(engines, node, "ac") and not accepts(engines, node, "ab")


def test_other_nodes_are_left_as_they_are(engines: Engines) -> None:
    node = {
        "type": "sequence",
        "elements": [
            {
                "type": "repeat",
                "min": 2,
                "max": 3,
                "content": {"type": "const_string", "value": "a"},
            },
            {"type": "or", "elements": [{"type": "grammar", "grammar": 'root ::= "x" | "y"'}]},
            {"type": "optional", "content": {"type": "const_string", "value": "!"}},
        ],
    }
    assert accepts(engines, node, "aay!") and accepts(engines, node, "aaax")
    assert not accepts(engines, node, "ay")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "nope"}, "#/format: type 'nope' is not supported"),
        ("text", "#/format: it must be an object"),
        ({"type": "const_string", "value": "a", "extra": 1}, "'extra' is not supported"),
        (
            {"type": "sequence", "elements": [{"type": "token", "token": 10**6}]},
            "#/format/elements/0/token",
        ),
        ({"type": "sequence", "elements": {}}, "#/format/elements: it must be a list"),
        ({"type": "sequence", "elements": []}, "at least one element"),
        ({"type": "token", "token": "<nothing>"}, "no token is '<nothing>'"),
        ({"type": "token", "token": True}, "a token id"),
        ({"type": "token", "token": EOS}, "ends the output"),
        ({"type": "regex", "pattern": "("}, "#/format/pattern: regex: at position 1"),
        ({"type": "regex"}, "it must be a string"),
        (
            {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}},
            "#/format/json_schema: json_schema: at #:",
        ),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "only 'json'"),
        ({"type": "json_schema", "json_schema": 5}, "an object or a boolean"),
        ({"type": "dispatch", "rules": [["a"]]}, "#/format/rules/0"),
        ({"type": "grammar", "grammar": "root ::= ("}, "structural_tag"),
        ({"type": "const_string", "value": 5}, "structural_tag"),
    ],
)
def test_what_is_refused_and_in_which_words(engines: Engines, node: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_constraint(wrapped(node), engines)
    assert words in str(refused.value) and refused.value.param == "structural_tag"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"type":"structural_tag"}', '{"type":"structural_tag","format":null}']
    + ['{"type":"structural_tag","type":"structural_tag","format":{}}', "[" * 200, '{"a":NaN}'],
)
def test_texts_that_are_no_structural_tag(engines: Engines, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_constraint(StructuralTag(text), engines)
    assert refused.value.param == "structural_tag"


def test_a_deep_tag_and_a_wide_one_are_compiled_or_refused(engines: Engines) -> None:
    node: Any = {"type": "const_string", "value": "a"}
    for _ in range(90):
        node = {"type": "optional", "content": node}
    assert accepts(engines, node, "a")
    many = [{"type": "const_string", "value": f"w{n}"} for n in range(500)]
    assert accepts(engines, {"type": "or", "elements": many}, "w499")
