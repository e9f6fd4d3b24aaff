"""Grammars survive the way from the process that made them to another."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from espalier.runtime.grammar.cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from espalier.runtime.grammar.regular import literal, whole_language
from espalier.runtime.grammar.schema.grammar import schema_grammar
from espalier.runtime.grammar.walk import Acceptance
from espalier.runtime.grammar.wire import decode_grammar, encode_grammar
from tests.derivations import Derivations

SCHEMAS: list[Any] = [
    True,
    {"type": "string", "pattern": "^(?!ab)[a-c]{2,7}$"},
    {"type": "array", "items": {"type": "integer", "minimum": 3, "multipleOf": 7}, "maxItems": 5},
    {"type": "object", "properties": {"a": {"$ref": "#"}, "é": {"enum": [1, "x"]}}},
    {"type": "string", "format": "date-time"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_the_grammar_of_a_schema_comes_back_equal(schema: Any) -> None:
    grammar = schema_grammar(json.dumps(schema)).grammar
    encoded = encode_grammar(grammar)
    decoded = decode_grammar(encoded)
    assert decoded.root == grammar.root and decoded.rules.keys() == grammar.rules.keys()
    assert encode_grammar(decoded) == encoded
    accepting, oracle = Acceptance(decoded), Acceptance(grammar)
    derivations = Derivations(grammar, random.Random(0))
    for _ in range(20):
        text = derivations.text()
        assert accepting.accepts(text)
        for other in (text[:-1], text + "0", text.replace("1", "x")):
            assert accepting.accepts(other) == oracle.accepts(other)


def test_every_kind_of_expression_comes_back_equal() -> None:
    word = whole_language("[a-z]+(x|y)*")
    rules: dict[str, Expr] = {
        "a": Sequence((Text("q"), Call("b"), Repeat(Lexeme(word), 0, None), Sequence(()))),
        "b": Choice((Text("1"), Lexeme(literal("z")), Repeat(Text("é"), 2, 3), Choice(()))),
    }
    decoded = decode_grammar(encode_grammar(Grammar(rules, "a")))
    assert decoded == Grammar(rules, "a")


def test_languages_are_written_once() -> None:
    word = whole_language("[a-z]{3,40}[0-9]")
    once = encode_grammar(Grammar({"a": Lexeme(word)}, "a"))
    often = encode_grammar(Grammar({"a": Sequence((Lexeme(word),) * 50)}, "a"))
    assert len(often) < len(once) + 100
