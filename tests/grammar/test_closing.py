"""Endings within budgets: whoever samples, the text ends whole and valid, and no token is allowed
after which the known ending would not fit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest

from bench.closing import SAMPLERS, Run, Sampler, runs, troubles
from bench.schemas.data import read_groups
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.cfg import Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from espalier.runtime.grammar.closing import Closer, Ending
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.grammar.regular import alt, literal
from espalier.runtime.grammar.schema.grammar import schema_grammar
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Choice as Choices
from espalier.runtime.messages import Constraint, JsonSchema, Regex

REAL = Path(__file__).parents[3] / "shared/data/real_schemas.jsonl"
PIECES = [
    *('{"', '":', '","', '"}', "},{", '},{"', "[[", "]]", '"],"', '":"', '":{"', '":[{"', '"}]}'),
    *(',"', "null", "true", '"a"', '":1,"b":', "aaaa", '{"a":{"b":{"', "00", "12", "1,", "-1"),
    *(".5", "e5", '"k":"', "abc", "ab", "0,0,", '"","', '","x":["', '":"","', "  ", "\n\n", "é"),
]
STOP = 256
TOKENS = (*(bytes([i]) for i in range(256)), b"</s>", *(piece.encode() for piece in PIECES))
# Other bytes behave as one of these does.
TEXTS = [i for i, text in enumerate(TOKENS) if i != STOP and (len(text) > 1 or 32 <= text[0] < 127)]


def record(num_keys: int, value: object) -> dict[str, object]:
    names = [f"k{i}" for i in range(num_keys)]
    return {"type": "object", "properties": dict.fromkeys(names, value), "required": names}


SCHEMAS: list[Any] = [
    {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 1},
    {"type": "array", "items": record(8, {"type": "boolean"}), "minItems": 2},
    {"type": "array", "items": record(8, {"const": 7}), "minItems": 3, "maxItems": 5},
    {"enum": ["a", "b" * 60 + "x", "bb", {"k": {"z": ["x" * 40]}}, [1, 2, 3, 4, 5, 6, 7]]},
    {"type": "object", "properties": {"a": record(12, {"type": "string"})}},
    {"type": "object", "properties": {"a": {"properties": {"b": record(8, {"type": "number"})}}}},
    {"type": "string", "minLength": 3, "maxLength": 30},
    {"type": "string", "pattern": r"^(\{\}|b{30}|,,)$"},
    {
        "type": "array",
        "prefixItems": [{"pattern": "^(,,|aaaa)$", "type": "string"}, record(5, {"const": 1})],
        "items": False,
    },
    {"type": "number"},
    {"type": "number", "minimum": 1000.5, "multipleOf": 0.5},
    True,
    {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "v": {}}}},
    },
    {"type": "array", "contains": {"type": "string", "minLength": 9}, "minContains": 2},
    {"type": "string", "format": "date-time"},
    {"type": "object", "patternProperties": {"^x{12}": {"minLength": 12, "type": "string"}}},
]
NARROW_KEYS: list[Any] = [
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    {"type": "object", "propertyNames": {"pattern": "^a*$"}},
    {"type": "object", "propertyNames": {"maxLength": 1}, "minProperties": 2},
    {"type": "object", "propertyNames": {"enum": ["a", "b", "ab"]}},
    {"type": "object", "patternProperties": {"^(a|a{20})$": {}}, "additionalProperties": False},
]


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(Vocabulary(TOKENS, (STOP,), (STOP,), len(TOKENS) + 5))


def compiled(constraint: Constraint, engines: Engines) -> CompiledGrammar:
    return engines.load(compile_constraint(constraint, engines))


def runs_of(grammar: CompiledGrammar, name: str) -> list[Run]:
    """Of budgets that are enough, most of them scarce."""
    sampler = Sampler(TOKENS, [STOP], len(TOKENS) + 5, name)
    budgets = [grammar.min_tokens + more for more in (0, 1, 2, 3, 5, 8, 13, 21, 34)]
    return list(runs(grammar, sampler, budgets, TOKENS))


@pytest.mark.parametrize(
    "schema", SCHEMAS + NARROW_KEYS, ids=lambda schema: json.dumps(schema)[:50]
)
def test_every_budget_that_is_enough_ends_whole(schema: Any, engines: Engines) -> None:
    grammar = compiled(JsonSchema(json.dumps(schema)), engines)
    for name in SAMPLERS:
        found = runs_of(grammar, name)
        assert found and not list(troubles(json.dumps(schema), found)), name


@pytest.mark.parametrize(
    "constraint", [Regex("(ab|a{9}){2,}c?"), Choices(("", "a" * 30)), Choices(("yes", "yes, sir"))]
)
def test_other_constraints_end_whole_too(constraint: Constraint, engines: Engines) -> None:
    for name in SAMPLERS:
        found = runs_of(compiled(constraint, engines), name)
        assert found and not any(run.trouble for run in found), name


class Growing:
    """Walks all over a grammar: what a token adds to the shortest known ending."""

    def __init__(self, closer: Closer, seed: int) -> None:
        self._closer, self._rng = closer, random.Random(seed)

    def steps(self, num_walks: int, num_steps: int) -> Iterator[tuple[Ending, int, Ending]]:
        for _ in range(num_walks):
            ending = self._closer.start
            for _ in range(num_steps):
                options = [(token_id, after) for token_id, after in self._options(ending)]
                yield from ((ending, token_id, after) for token_id, after in options)
                if not options:
                    break
                ending = self._chosen(options)

    def _options(self, ending: Ending) -> Iterator[tuple[int, Ending]]:
        for token_id in TEXTS:
            after = self._closer.after(ending, token_id)
            if after.cost < inf:
                yield token_id, after

    def _chosen(self, options: list[tuple[int, Ending]]) -> Ending:
        """As deep as it goes, on to the end, or anywhere."""
        way = self._rng.random()
        if way < 0.2:
            return max(options, key=lambda option: option[1].cost)[1]
        open_ones = [option for option in options if option[1].threads] or options
        if way < 0.6:
            return min(open_ones, key=lambda option: option[1].cost)[1]
        long = [option for option in options if len(TOKENS[option[0]]) > 1]
        return self._rng.choice(long or options)[1]


def assert_sound(closer: Closer, num_walks: int, num_steps: int) -> None:
    for ending, token_id, after in Growing(closer, 0).steps(num_walks, num_steps):
        assert after.cost <= ending.most + closer.growth, (
            TOKENS[token_id],
            ending.most,
            after.cost,
        )


@cache
def closing() -> Any:
    return Engines(Vocabulary(TOKENS, (STOP,), (STOP,), len(TOKENS))).closing


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_where_it_fits_any_token_can_be_taken(schema: Any) -> None:
    grammar = schema_grammar(json.dumps(schema), open_objects=True).grammar
    assert_sound(Closer(grammar, closing()), 2, 120)


LONG = Text("[aaaaaaaaaaaaaaaa]")
GRAMMARS: list[Expr] = [
    Sequence((Text("{"), Repeat(LONG, 1, None), Text("}"))),
    Sequence((Text("{"), Repeat(LONG, 2, 4), Text("}"))),
    Sequence((Repeat(Text(","), 1, None), Choice((Text("3"), Text("4,aaaaaaaaaaaaaa"))))),
    Sequence((Lexeme(alt(literal("[]"), literal("abc"))), Choice((Text("3"), LONG)), Text("}"))),
    Sequence((Lexeme(alt(literal(",,"), literal("aaaa"))), Choice((Text("}"), LONG)))),
]


@pytest.mark.parametrize("root", GRAMMARS, ids=range(len(GRAMMARS)))
def test_it_holds_for_grammars_that_no_schema_has(root: Expr) -> None:
    assert_sound(Closer(Grammar({"r": root}, "r"), closing()), 8, 60)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_the_known_ending_is_one_and_becomes_shorter_by_each_of_its_tokens(schema: Any) -> None:
    grammar = schema_grammar(json.dumps(schema)).grammar
    closer = Closer(grammar, closing())
    seen = 0
    for ending, _, after in Growing(closer, 1).steps(1, 60):
        if seen % 7 == 0:
            while not after.is_whole:
                tokens = list(closer.tokens(after))
                assert len(tokens) == after.cost
                following = closer.after(after, tokens[0])
                assert following.cost <= after.cost - 1
                after = following
        seen += 1
        assert ending.cost <= ending.most or ending.is_whole
    assert seen


@pytest.mark.skipif(not REAL.exists(), reason="the real schemas are not beside the checkout")
def test_real_schemas_end_whole(engines: Engines) -> None:
    num_ended = 0
    for group in read_groups(REAL, limit=30):
        try:
            grammar = compiled(JsonSchema(group.schema), engines)
        except InvalidRequest:
            continue
        for name in SAMPLERS:
            found = runs_of(grammar, name)
            assert not list(troubles(group.schema, found)), (group.name, name)
            num_ended += len(found)
    assert num_ended > 100
