"""Masks that are filled for many requests at once are those that each gets alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.schemas.data import read_groups
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.closing import Ending
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.filling import fill_masks
from espalier.runtime.grammar.guide import CompiledGrammar, Guide
from espalier.runtime.grammar.mask_cache import MaskCache
from espalier.runtime.grammar.token_masks import Bitmask
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex

REAL = Path(__file__).parents[3] / "shared/data/real_schemas.jsonl"
STOPS = (256, 257)
PIECES = ('{"', '":', '","', '"}', '":"', "null", "true", "ab", "éa", "12")
TOKENS = (
    *(bytes([i]) for i in range(256)),
    *(b"</s>", b"<end>"),
    *(piece.encode() for piece in PIECES),
)
NUM_WORDS = len(TOKENS) // 32 + 1
OBJECT = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}
RECORD = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string", "pattern": "^x{2,5}y*$"}},
    "required": ["a", "b"],
}
CONSTRAINTS: list[Constraint] = [
    JsonSchema(json.dumps(OBJECT)),
    JsonSchema(json.dumps(RECORD)),
    JsonSchema(json.dumps({"type": "array", "items": {"enum": ["ab", "a", "é"]}})),
    Regex("[a-z]{2,6}(12)?"),
    Choice(("yes", "no", "null and void")),
    Ebnf('root ::= "a" root "b" | "é"'),
]


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(Vocabulary(TOKENS, STOPS, STOPS, 32 * NUM_WORDS - 3))


def compiled(constraint: Constraint, engines: Engines) -> tuple[CompiledGrammar, CompiledGrammar]:
    """The second one remembers no mask: its engine is asked at each place."""
    artefact = compile_constraint(constraint, engines)
    forgetful = replace(engines.load(artefact), mask_cache=MaskCache(0))
    return engines.load(artefact), forgetful


def alone(guide: Guide, left: int) -> Bitmask:
    row = np.full(NUM_WORDS, 7, np.int32)
    guide.fork().fill(row, left)
    return row


def random_token(mask: Bitmask, rng: random.Random) -> int:
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert len(allowed) > 0, "a dead end"
    return int(rng.choice(allowed.tolist()))


def test_the_masks_of_many_are_those_of_each_alone(engines: Engines) -> None:
    grammars = [compiled(constraint, engines) for constraint in CONSTRAINTS]
    assert {grammar.engine_name for grammar, _ in grammars} == {"xgrammar", "llguidance"}
    rng = random.Random(3)
    num_filled = 0
    for _ in range(40):
        now = rng.choices(grammars, k=rng.randrange(1, 9))
        rows = [
            (one.guide(), other.guide(), one.min_tokens + rng.randrange(12)) for one, other in now
        ]
        while rows:
            guides, lefts = [guide for guide, _, _ in rows], [left for _, _, left in rows]
            if rng.random() < 0.3:  # as a jump does, which asks for the mask before
                guides[0].fill(np.empty(NUM_WORDS, np.int32), lefts[0])
            masks = fill_masks(guides, lefts, NUM_WORDS)
            for mask, (_, other, left) in zip(masks, rows, strict=True):
                assert mask.tolist() == alone(other, left).tolist()
            assert fill_masks(guides[:1], lefts[:1], NUM_WORDS)[0] is masks[0]  # it is known
            num_filled += len(masks)
            going: list[tuple[Guide, Guide, int]] = []
            for mask, (guide, other, left) in zip(masks, rows, strict=True):
                token_id = random_token(mask, rng)
                assert guide.accept(token_id) and other.accept(token_id)
                if left > 1 and not guide.is_terminated:
                    going.append((guide, other, left - 1))
            rows = going
    assert num_filled > 500


def real_schemas() -> list[str]:
    if not REAL.exists():
        pytest.skip("shared/data/real_schemas.jsonl is not here")
    return [group.schema for group in read_groups(REAL, limit=25)]


def test_what_an_engine_allowed_at_a_place_it_allows_there_again(engines: Engines) -> None:
    """Walks through schemas met in the wild; each walk after the first finds some masks known."""
    rng = random.Random(5)
    num_known = 0
    for schema in real_schemas():
        try:
            grammar, forgetful = compiled(JsonSchema(schema), engines)
        except InvalidRequest:
            continue
        for _ in range(6):
            guide, other = grammar.guide(), forgetful.guide()
            for left in range(grammar.min_tokens + 60, 0, -1):
                num_known += guide.known_mask(left) is not None
                row = np.empty(NUM_WORDS, np.int32)
                guide.fill(row, left)
                assert row.tolist() == alone(other, left).tolist(), schema
                token_id = random_token(row, rng)
                assert guide.accept(token_id) and other.accept(token_id)
                if guide.is_terminated:
                    break
    assert num_known > 500


def test_no_more_masks_are_remembered_than_are_allowed(engines: Engines) -> None:
    artefact = compile_constraint(JsonSchema(json.dumps(RECORD)), engines)
    cache = MaskCache(3)
    grammar = replace(engines.load(artefact), mask_cache=cache)
    rng = random.Random(1)
    places: list[Ending] = []
    for _ in range(4):
        guide = grammar.guide()
        for left in range(grammar.min_tokens + 20, 0, -1):
            row = np.empty(NUM_WORDS, np.int32)
            guide.fill(row, left)
            place = guide.place()
            assert place is not None
            places.append(place)
            assert place.mask is not None
            assert len({id(p) for p in places if p.mask is not None}) <= 3
            guide.accept(random_token(row, rng))
            if guide.is_terminated:
                break
    assert len({id(place) for place in places}) > 10


def test_a_place_of_too_many_readings_is_not_followed(engines: Engines) -> None:
    """Its masks are the engine's all the same, and the text is whole in time."""
    pairs = [
        {
            "type": "array",
            "prefixItems": [{"type": "string", "maxLength": 6}, {"const": f"é{number}"}],
            "minItems": 2,
            "items": False,
        }
        for number in range(100)
    ]
    grammar, forgetful = compiled(JsonSchema(json.dumps({"anyOf": pairs})), engines)
    rng = random.Random(2)
    for _ in range(5):
        guide, other, text = grammar.guide(), forgetful.guide(), b""
        for left in range(grammar.min_tokens + 8, 0, -1):
            row = np.empty(NUM_WORDS, np.int32)
            guide.fill(row, left)
            assert row.tolist() == alone(other, left).tolist()
            if text.startswith(b'["'):
                assert guide.place() is None and guide.known_mask(left - 1) is None
            token_id = random_token(row, rng)
            assert guide.accept(token_id) and other.accept(token_id)
            if guide.is_terminated:
                break
            text += TOKENS[token_id]
        assert json.loads(text)[1].startswith("é")


def test_of_no_requests_there_is_no_mask() -> None:
    assert fill_masks([], [], NUM_WORDS) == []
