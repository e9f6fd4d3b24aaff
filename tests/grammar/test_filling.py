"""Masks that are filled for many requests at once are those that each gets alone."""

from __future__ import annotations

import json
import random

import numpy as np

from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.filling import fill_masks
from espalier.runtime.grammar.guide import Guide
from espalier.runtime.grammar.token_masks import Bitmask
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex

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


def alone(guide: Guide, left: int) -> Bitmask:
    row = np.full(NUM_WORDS, 7, np.int32)
    guide.fork().fill(row, left)
    return row


def test_the_masks_of_many_are_those_of_each_alone() -> None:
    engines = Engines(Vocabulary(TOKENS, STOPS, STOPS, 32 * NUM_WORDS - 3))
    grammars = [engines.load(compile_constraint(c, engines)) for c in CONSTRAINTS]
    assert {grammar.engine_name for grammar in grammars} == {"xgrammar", "llguidance"}
    rng = random.Random(3)
    num_filled = 0
    for _ in range(40):
        grammars_now = rng.choices(grammars, k=rng.randrange(1, 9))
        guides = [grammar.guide() for grammar in grammars_now]
        lefts = [grammar.min_tokens + rng.randrange(0, 12) for grammar in grammars_now]
        while guides:
            expected = [alone(guide, left) for guide, left in zip(guides, lefts, strict=True)]
            if rng.random() < 0.3:  # as a jump does, which asks for the mask before
                guides[0].fill(np.empty(NUM_WORDS, np.int32), lefts[0])
            masks = fill_masks(guides, lefts, NUM_WORDS)
            assert [mask.tolist() for mask in masks] == [mask.tolist() for mask in expected]
            assert fill_masks(guides[:1], lefts[:1], NUM_WORDS)[0] is masks[0]  # it is known
            num_filled += len(masks)
            going: list[tuple[Guide, int]] = []
            for guide, left, mask in zip(guides, lefts, masks, strict=True):
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                assert len(allowed) > 0, "a dead end"
                assert guide.accept(int(rng.choice(allowed.tolist())))
                if left > 1 and not guide.is_terminated:
                    going.append((guide, left - 1))
            guides, lefts = [guide for guide, _ in going], [left for _, left in going]
    assert num_filled > 500


def test_of_no_requests_there_is_no_mask() -> None:
    assert fill_masks([], [], NUM_WORDS) == []
