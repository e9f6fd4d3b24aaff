"""Constraints over the default model's real vocabulary."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from espalier.runtime.assembly import grammar_engines
from espalier.runtime.errors import ModelError
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engine import EngineGrammar
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.messages import Choice, Constraint, JsonSchema, Regex
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.grammar_walks import Walker, allowed_ids

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["person", "place", "北京"]},
        "born": {
            "anyOf": [{"type": "integer", "minimum": 1000, "maximum": 2100}, {"type": "null"}]
        },
        "links": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "score": {"type": "number"},
    },
    "required": ["name", "kind", "born"],
    "additionalProperties": False,
}
CHOICES = ("positive", "negative", "positively not", "neutral 😐")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    try:
        return load_tokenizer(resolve_model("smollm2").path)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def engines(tokenizer: Tokenizer) -> Engines:
    return grammar_engines(tokenizer, tokenizer.vocab_size)


def compiled(engines: Engines, constraint: Constraint) -> EngineGrammar:
    return engines.load(compile_constraint(constraint, engines)).engine


def texts_of(
    engines: Engines, tokenizer: Tokenizer, constraint: Constraint, num_steps: int
) -> list[str]:
    grammar = compiled(engines, constraint)
    walker = Walker(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.vocab_size)
    texts: list[str] = []
    while num_steps > 0:
        taken = walker.walk(grammar)
        num_steps -= len(taken.ids) + 1
        assert not tokenizer.control_ids.intersection(taken.ids)
        if taken.is_finished:
            texts.append(b"".join(tokenizer.token_bytes[i] for i in taken.ids).decode())
    assert texts, "no walk finished"
    return texts


def test_json_walks_validate(engines: Engines, tokenizer: Tokenizer) -> None:
    validator: Any = jsonschema.Draft202012Validator(SCHEMA)
    for text in texts_of(engines, tokenizer, JsonSchema(json.dumps(SCHEMA)), 8500):
        validator.validate(json.loads(text))


def test_regex_walks_match(engines: Engines, tokenizer: Tokenizer) -> None:
    pattern = r"(\w{1,9} ){1,3}[^\d\s.]{1,20}\.( .{0,30})?"
    for text in texts_of(engines, tokenizer, Regex(pattern), 600):
        assert re.fullmatch(pattern, text, re.ASCII), text


def test_choice_walks_are_members(engines: Engines, tokenizer: Tokenizer) -> None:
    assert set(texts_of(engines, tokenizer, Choice(CHOICES), 1000)) == set(CHOICES)


def test_no_control_token_inside_a_string(engines: Engines, tokenizer: Tokenizer) -> None:
    matcher = compiled(engines, JsonSchema('{"type":"string"}')).matcher()
    assert matcher.accept(tokenizer.token_bytes.index(b'"'))
    allowed = allowed_ids(matcher, tokenizer.vocab_size)
    assert len(allowed) > 40_000
    assert not allowed & tokenizer.control_ids
