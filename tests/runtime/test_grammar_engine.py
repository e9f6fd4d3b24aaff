"""Compiled grammars over a vocabulary of bytes and of pieces that cross every border."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engine import EngineGrammar
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex
from tests.grammar_walks import Walker, allowed_ids

PIECES = [
    *('{"', '":', '","', '"}', "true", "tr", "ue", "null", "12", "-1", "\n", " ", "\t", "北"),
    *("ab", "abc", "caf", "fé", "é", '\\"', "[[", "]]", "0.", "e5", "2024-", "\x01", '"\n'),
]
BYTES = [bytes([i]) for i in range(256)]
IM_START, IM_END, END = 256, 257, 258
CONTROLS = [b"<|im_start|>", b"<|im_end|>", b"</s>"]
UNUSED = 259
HALVES = [b"a\xed", b"\xed\xa0\x80", b"\x80\xed", b"\xa0\x80", b"\x9f\xbf"]  # of U+D7FF, U+D800
TOKENS = [*BYTES, *CONTROLS, b"", *(piece.encode() for piece in PIECES), *HALVES]
STOPS = (IM_END, END)
WIDTH = len(TOKENS) + 7  # the model's head is wider than the tokenizer
ALWAYS_MASKED = {IM_START, UNUSED, *range(len(TOKENS), WIDTH)}

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "北京", 'q"uote', "a/b"]}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
        "at": {"type": "string", "format": "date"},
        "ratio": {"type": "number"},
    },
    "required": ["name", "age", "note"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "boolean"},
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "left"],
        }
    },
}
SCHEMAS: list[Any] = [
    PERSON,
    TREE,
    True,
    {"const": {"a": [1, None, "x\n"]}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "string", "pattern": "^[a-c]{2,4}.$"},
    {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
]
REGEXES = [
    r"[a-f0-9]{2,6}",
    r"(ab|abc)*c?",
    r"\w{1,9}@\w{1,9}\.(com|org)",
    "a.c",
    r"[^\x00-\x7f]{1,3}",
    "",
]
BYTE_ENGINES = Engines(Vocabulary((*BYTES, b""), (), (256,), 257))
CHOICES = ("", "yes", "yes!", "no\n", "北京", 'a "quoted" \\ one', "naïve 😀", "<|im_start|>", "]")


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(Vocabulary(tuple(TOKENS), (IM_START, IM_END, END), STOPS, WIDTH))


def compiled(engines: Engines, constraint: Constraint) -> EngineGrammar:
    return engines.load(compile_constraint(constraint, engines)).engine


def texts_of(engines: Engines, constraint: Constraint, num_steps: int) -> list[str]:
    """Texts of the walks that finished, over at least `num_steps` steps."""
    grammar = compiled(engines, constraint)
    walker = Walker(TOKENS, STOPS, WIDTH)
    texts: list[str] = []
    while num_steps > 0:
        taken = walker.walk(grammar)
        num_steps -= len(taken.ids) + 1
        assert not ALWAYS_MASKED.intersection(taken.ids)
        if taken.is_finished:
            texts.append(b"".join(TOKENS[i] for i in taken.ids).decode())
    assert texts, "no walk finished"
    return texts


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_json_walks_validate_and_are_compact(engines: Engines, schema: Any) -> None:
    validator: Any = jsonschema.Draft202012Validator(schema)
    for text in texts_of(engines, JsonSchema(json.dumps(schema)), 800):
        document = json.loads(text)
        validator.validate(document)
        assert not re.search(r"[\x00-\x1f]", text)
        assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", text)), text


@pytest.mark.parametrize("pattern", REGEXES)
def test_regex_walks_match(engines: Engines, pattern: str) -> None:
    for text in texts_of(engines, Regex(pattern), 400):
        assert re.fullmatch(pattern, text, re.ASCII), text


def test_choice_walks_are_members_and_reach_all(engines: Engines) -> None:
    assert set(texts_of(engines, Choice(CHOICES), 1500)) == set(CHOICES)


def test_ebnf_walks(engines: Engines) -> None:
    grammar = 'root ::= "(" root ")" | [0-9]+\n'
    for text in texts_of(engines, Ebnf(grammar), 400):
        assert re.fullmatch(r"\(*[0-9]+\)*", text) and text.count("(") == text.count(")")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
@settings(max_examples=60, deadline=None)
def test_choices_accept_themselves_alone(choices: list[str]) -> None:
    grammar = compiled(BYTE_ENGINES, Choice(tuple(choices)))
    for text in [*choices, "".join(choices) + "x", choices[0][:-1], choices[0] + '"']:
        matcher = grammar.matcher()
        is_taken = all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(256)
        assert is_taken == (text in choices)


def test_control_and_padding_tokens_are_masked_and_refused(engines: Engines) -> None:
    matcher = compiled(engines, JsonSchema('{"type":"string"}')).matcher()
    assert matcher.accept(ord('"'))
    allowed = allowed_ids(matcher, WIDTH)
    assert not allowed & (ALWAYS_MASKED | set(STOPS))
    for token_id in (*ALWAYS_MASKED, *STOPS, -1, WIDTH + 100, 2**40):
        assert not matcher.accept(token_id)
    assert allowed_ids(matcher, WIDTH) == allowed, "refused tokens change nothing"


def test_raw_control_characters_never_get_into_json(engines: Engines) -> None:
    matcher = compiled(engines, JsonSchema('{"type":"string","maxLength":9}')).matcher()
    assert matcher.accept(ord('"'))
    assert not any(min(TOKENS[i]) < 0x20 for i in allowed_ids(matcher, WIDTH))
    assert not matcher.accept(ord("\t"))
    text = compiled(engines, Regex(r"\t\n")).matcher()
    assert text.accept(ord("\t")) and text.accept(ord("\n"))


def test_surrogates_never_come_byte_by_byte(engines: Engines) -> None:
    grammar = compiled(engines, Regex("[^a]*"))
    matcher = grammar.matcher()
    assert matcher.accept(0xED)
    first = [TOKENS[i][0] for i in allowed_ids(matcher, WIDTH)]
    assert set(first) == set(range(0x80, 0xA0))
    assert not matcher.accept(0xA0)
    assert matcher.accept(0x9F) and matcher.accept(0xBF)
    assert allowed_ids(matcher, WIDTH) == allowed_ids(grammar.matcher(), WIDTH)


def test_stop_tokens_only_where_the_text_is_whole(engines: Engines) -> None:
    for stop in STOPS:
        matcher = compiled(engines, Regex("ab?")).matcher()
        assert not matcher.is_completed and not matcher.accept(stop)
        assert matcher.accept(ord("a"))
        assert matcher.is_completed and not matcher.is_terminated
        assert allowed_ids(matcher, WIDTH) == {ord("b"), *STOPS}
        assert matcher.accept(stop)
        assert matcher.is_terminated
        with pytest.raises(AssertionError, match="terminated"):
            matcher.fill(np.zeros((WIDTH + 31) // 32, np.int32))


def test_an_empty_mask_is_reported() -> None:
    engines = Engines(Vocabulary((b"a", b"ab", b""), (), (2,), 3))
    matcher = engines.xgrammar.compile('root ::= "ac"', is_json=False, param="x").matcher()
    assert matcher.accept(0)
    row = np.full(1, -1, np.int32)
    assert not matcher.fill(row)
    assert row[0] == 0


def test_matchers_of_one_grammar_are_independent(engines: Engines) -> None:
    grammar = compiled(engines, Choice(("ab", "cd")))
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a")) and second.accept(ord("c"))
    assert first.accept(ord("b")) and not second.accept(ord("b"))
    assert grammar.num_bytes > 0


REFUSED: list[tuple[Callable[[str], Constraint], str, str, str]] = [
    (JsonSchema, '{"type":"foo"}', "json_schema", "no such type: 'foo'"),
    (Regex, "(", "regex", "at position 1: missing ')'"),
    (Ebnf, "", "ebnf", '"root" is not found'),
    (Ebnf, 'rot ::= "a"', "ebnf", '"root" is not found'),
    (Ebnf, "root ::= foo", "ebnf", 'Rule "foo" is not defined'),
    (Ebnf, 'root ::= "a', "ebnf", "line 1"),
    (Ebnf, 'root ::= root "a"', "ebnf", "no text at all"),
]


@pytest.mark.parametrize(("kind", "text", "param", "words"), REFUSED, ids=lambda v: str(v)[:30])
def test_words_reach_the_caller(
    engines: Engines,
    kind: Callable[[str], Constraint],
    text: str,
    param: str,
    words: str,
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as refused:
        compiled(engines, kind(text))
    assert refused.value.param == param
    assert ".cc:" not in str(refused.value)
