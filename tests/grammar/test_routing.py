"""Both engines, where both can read a grammar, allow what the grammar derives and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from espalier.runtime.errors import ModelError
from espalier.runtime.grammar import compile_job
from espalier.runtime.grammar.cfg import Grammar
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engine import EngineGrammar
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.routing import notations
from espalier.runtime.grammar.schema.grammar import schema_grammar
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.grammar.walk import Acceptance
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.messages import Ebnf, JsonSchema
from espalier.runtime.tokenizer.tokenizer import load_tokenizer
from tests.derivations import Derivations
from tests.grammar_walks import allowed_ids

STOP = 256
BYTES = Vocabulary((*(bytes([i]) for i in range(256)), b"</s>"), (STOP,), (STOP,), 257)
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"]},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-c]+(é|x)?$"},
    {"type": "array", "items": {"enum": [1, "a", None, {"x": [1]}]}, "minItems": 1, "maxItems": 3},
    {"type": "number", "minimum": -3.5, "maximum": 1200},
    {"type": "integer", "multipleOf": 7},
    {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}},
]
MANY_KEYS = {
    "type": "object",
    "properties": {f"key{i}": {"type": "integer"} for i in range(100)},
}


def compiled(grammar: Grammar, engines: Engines) -> list[tuple[str, EngineGrammar]]:
    found: list[tuple[str, EngineGrammar]] = []
    for engine, text in notations(grammar):
        compiler = engines.xgrammar if engine == "xgrammar" else engines.llguidance
        found.append((engine, compiler.compile(text, is_json=True, param="x")))
    return found


def accepts(grammar: EngineGrammar, token_ids: list[int], stop_id: int) -> bool:
    matcher = grammar.matcher()
    return all(map(matcher.accept, token_ids)) and matcher.accept(stop_id)


def spoiled(text: str, rng: random.Random) -> str:
    """With one character left out, put in, or changed."""
    place = rng.randrange(len(text))
    rest = place + rng.randint(0, 1)
    return text[:place] + rng.choice(["", "0", '"', "a", ",", "}", " ", "\\"]) + text[rest:]


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(BYTES)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_engines_accept_what_the_grammar_derives(schema: Any, engines: Engines) -> None:
    grammar = schema_grammar(json.dumps(schema)).grammar
    both = compiled(grammar, engines)
    assert both
    rng, oracle = random.Random(0), Acceptance(grammar)
    derivations = Derivations(grammar, rng)
    for _ in range(25):
        text = derivations.text()
        for candidate in (text, spoiled(text, rng), spoiled(text, rng)):
            expected = oracle.accepts(candidate)
            for engine, compiled_grammar in both:
                found = accepts(compiled_grammar, list(candidate.encode()), STOP)
                assert found == expected, (engine, candidate)


def test_most_of_these_grammars_are_read_by_both(engines: Engines) -> None:
    grammars = [schema_grammar(json.dumps(schema)).grammar for schema in SCHEMAS]
    assert sum(len(compiled(grammar, engines)) == 2 for grammar in grammars) >= len(SCHEMAS) - 2


@pytest.mark.parametrize("schema", SCHEMAS[:4], ids=lambda schema: json.dumps(schema)[:40])
def test_the_same_over_a_real_vocabulary(schema: Any) -> None:
    try:
        tokenizer = load_tokenizer(resolve_model("smollm2").path)
    except ModelError as error:
        pytest.skip(str(error))
    stop_ids = tuple(tokenizer.eos_ids)
    vocabulary = Vocabulary(
        tuple(tokenizer.token_bytes), tuple(tokenizer.control_ids), stop_ids, tokenizer.vocab_size
    )
    grammar = schema_grammar(json.dumps(schema)).grammar
    both = compiled(grammar, Engines(vocabulary))
    rng = random.Random(1)
    derivations = Derivations(grammar, rng)
    num_tried = 0
    for _ in range(10):
        text = derivations.text()
        token_ids = tokenizer.encode(text)
        if b"".join(vocabulary.token_bytes[i] for i in token_ids) != text.encode():
            continue  # it has no tokens for some bytes
        num_tried += 1
        for engine, compiled_grammar in both:
            assert accepts(compiled_grammar, token_ids, stop_ids[0]), (engine, text)
    assert num_tried


def test_a_short_grammar_goes_to_the_engine_with_ready_masks_and_a_long_one_does_not() -> None:
    short = schema_grammar('{"enum":["a","b"]}').grammar
    assert [engine for engine, _ in notations(short)] == ["xgrammar", "llguidance"]
    long = schema_grammar(json.dumps(MANY_KEYS)).grammar
    assert [engine for engine, _ in notations(long)] == ["llguidance", "xgrammar"]


def test_more_alternatives_than_llguidance_can_match_with_go_to_xgrammar() -> None:
    wide = schema_grammar(json.dumps({"enum": [f"{i:06}" for i in range(2500)]})).grammar
    assert [engine for engine, _ in notations(wide)] == ["xgrammar", "llguidance"]


def test_what_a_grammar_takes_grows_no_faster_than_its_schema(engines: Engines) -> None:
    """A serialised one takes 21 MB for this: a copy of its automaton for each rule."""
    artefact = compile_constraint(JsonSchema(json.dumps(MANY_KEYS)), engines)
    assert len(artefact.payload) < 20_000
    assert engines.load(artefact).num_bytes > 10 * len(artefact.payload)


def test_many_alternatives_in_a_list_are_compiled_by_xgrammar(engines: Engines) -> None:
    """Serialised they would take 150 MB, and thirty times as long as the compilation."""
    schema = {"items": {"enum": [f"{i * 7919:x} {i:b}" for i in range(2000)]}}
    artefact = compile_constraint(JsonSchema(json.dumps(schema)), engines)
    assert artefact.engine == "xgrammar" and len(artefact.payload) < 100_000


def test_what_takes_long_to_compile_is_serialised_and_what_that_takes_is_counted(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = 'root ::= [a-z]{1,200} root | "x"'
    again = compile_constraint(Ebnf(grammar), engines)
    assert not again.is_serialized and again.payload == grammar.encode()
    monkeypatch.setattr(compile_job, "MAX_AGAIN_S", 0.0)
    serialised = compile_constraint(Ebnf(grammar), engines)
    assert serialised.is_serialized and len(serialised.payload) > 500_000
    assert engines.load(serialised).num_bytes > len(serialised.payload)
    one, other = (engines.load(artefact).engine.matcher() for artefact in (again, serialised))
    width = engines.vocabulary.width
    for byte in b"azx":
        assert allowed_ids(one, width) == allowed_ids(other, width)
        assert one.accept(byte) and other.accept(byte)
    assert one.is_completed and other.is_completed
