"""Forced text as tokens: those that the whole text is read as, by whatever tokenizer."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from espalier.runtime.errors import ModelError
from espalier.runtime.grammar.cfg import Choice, Expr, Grammar, Repeat, Text
from espalier.runtime.grammar.cfg import Sequence as Parts
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.guide import CompiledGrammar, Guide
from espalier.runtime.grammar.jumping import NO_JUMP, Jumper
from espalier.runtime.grammar.routing import notations
from espalier.runtime.grammar.schema.grammar import schema_grammar
from espalier.runtime.grammar.validation import validate_json
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.messages import Choice as OneOf
from espalier.runtime.messages import Constraint, Ebnf, JsonSchema, Regex
from espalier.runtime.tokenizer.tokenizer import load_tokenizer
from tests.tiny_tokenizers import BYTE_CHARS

PLENTY = 10**6
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[:,]')


# -- documents -------------------------------------------------------------------------------------

_WORDS = [
    *("the", "Lisbon", "été", "population", "order", "Ids", "“quoted”", "naïve", "北京", "a/b"),
    *("x_y", "don't", "3.5", "e-mail", "U+00E9"),
]


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randrange(5)))


def a_string(**fields: Any) -> dict[str, Any]:
    return {"type": "string", **fields}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_CITY = an_object(name=a_string(), population={"type": "integer"}, country=a_string(maxLength=90))
_CALL = an_object(
    name={"enum": ["get_weather", "get_time", "search"]},
    arguments=an_object(location=a_string(), unit={"enum": ["celsius", "fahrenheit"]}),
)
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": an_object(
            label=a_string(), children={"type": "array", "items": {"$ref": "#/$defs/node"}}
        )
    },
}
_ORDER = an_object(
    kind={"enum": ["orderId", "orderName"]},
    price={"type": "number"},
    paid={"type": "boolean"},
    lines={"type": "array", "items": an_object(sku=a_string(), count={"type": "integer"})},
    note={"anyOf": [a_string(), {"type": "null"}]},
)


def city(rng: random.Random) -> Any:
    number = rng.choice((0, 7, 2140000, 545, -3))
    return {"name": words(rng), "population": number, "country": words(rng)}


def call(rng: random.Random) -> Any:
    name = rng.choice(("get_weather", "get_time", "search"))
    unit = rng.choice(("celsius", "fahrenheit"))
    return {"name": name, "arguments": {"location": words(rng), "unit": unit}}


def tree(rng: random.Random, depth: int = 3) -> Any:
    children = [tree(rng, depth - 1) for _ in range(rng.randrange(3) if depth else 0)]
    return {"label": words(rng), "children": children}


def order(rng: random.Random) -> Any:
    return {
        "kind": rng.choice(("orderId", "orderName")),
        "price": rng.choice((0, 1.5, 20.25)),
        "paid": rng.random() < 0.5,
        "lines": [{"sku": words(rng), "count": 1} for _ in range(rng.randrange(3))],
        "note": rng.choice((None, words(rng))),
    }


_FREE_KEYS = {
    "type": "object",
    "properties": {"population": a_string(), "addresses": {"type": "object", "minProperties": 2}},
    "required": ["population", "addresses"],
    "additionalProperties": {"enum": ["get_weather", "get_time"]},
    "minProperties": 4,
}

MAKERS: list[tuple[Any, Callable[[random.Random], Any]]] = [
    (_CITY, city),
    (_CALL, call),
    (_TREE, tree),
    (_ORDER, order),
]


def spaced(text: str) -> str:
    """JSON with a space behind each comma and colon outside of strings."""
    return _STRUCTURE.sub(lambda m: m[0] if m[0][0] == '"' else m[0] + " ", text)


def documents(is_spaced: bool) -> Iterator[tuple[int, str]]:
    """25 for each schema, by its index."""
    rng = random.Random(0)
    for index, (_, make) in enumerate(MAKERS):
        for _ in range(25):
            text = json.dumps(make(rng), ensure_ascii=False, separators=(",", ":"))
            yield index, spaced(text) if is_spaced else text


# -- tokenizers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """A tokenizer with the engines and the jumper over it."""

    encode: Callable[[str], list[int]]
    token_bytes: Sequence[bytes]
    stop_id: int
    engines: Engines
    jumper: Jumper


def reader(
    encode: Callable[[str], list[int]],
    token_bytes: Sequence[bytes],
    controls: Sequence[int],
    stop_ids: Sequence[int],
) -> Reader:
    width = len(token_bytes)
    vocabulary = Vocabulary(tuple(token_bytes), tuple(controls), tuple(stop_ids), width)
    jumper = Jumper(encode, token_bytes, control_ids=controls, vocab_width=width)
    return Reader(encode, token_bytes, stop_ids[0], Engines(vocabulary), jumper)


def bytes_of_char() -> dict[str, int]:
    """Byte-level BPE's letters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + index): byte for index, byte in enumerate(others)}


def trained(split: Any, normalizer: Any = None, size: int = 900) -> Reader:
    """Byte-level BPE, trained on such documents; `split`: what it never merges across."""
    backend = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=BYTE_CHARS, show_progress=False
    )
    texts = [text for is_spaced in (False, True) for _, text in documents(is_spaced)]
    backend.train_from_iterator(texts, trainer)
    letters = bytes_of_char()
    end = backend.get_vocab_size()
    pieces = [backend.id_to_token(index) or "" for index in range(end)]
    token_bytes = [bytes(letters[char] for char in piece) for piece in pieces]
    return reader(lambda text: backend.encode(text).ids, [*token_bytes, b"<end>"], [end], [end])


@cache
def reader_of(name: str) -> Reader:
    match name:
        case "words":
            return trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
        case "unsplit":
            # Of any more tokens most would be whole stretches of these documents.
            split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return trained(split, size=340)
        case "lower case":
            split = pre_tokenizers.ByteLevel(add_prefix_space=False)
            return trained(split, normalizers.Lowercase())
        case "prefix space":
            return trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
        case _:
            try:
                tokenizer = load_tokenizer(resolve_model(name).path)
            except ModelError as error:
                pytest.skip(str(error))
            controls, stops = sorted(tokenizer.control_ids), sorted(tokenizer.eos_ids)
            return reader(tokenizer.encode, tokenizer.token_bytes, controls, stops)


READERS = ["smollm2", "words", "unsplit"]


# -- grammars --------------------------------------------------------------------------------------


def compiled(using: Reader, constraint: Constraint) -> CompiledGrammar:
    return using.engines.load(compile_constraint(constraint, using.engines))


def with_spaces(expr: Expr) -> Expr:
    match expr:
        case Text(text):
            return Text(spaced(text))
        case Parts(parts):
            return Parts(tuple(map(with_spaces, parts)))
        case Choice(options):
            return Choice(tuple(map(with_spaces, options)))
        case Repeat(body, lo, hi):
            return Repeat(with_spaces(body), lo, hi)
        case _:
            return expr


@cache
def guides(name: str, index: int, is_spaced: bool) -> list[Callable[[], Guide]]:
    """New guides of one of the schemas, by every engine that can read it."""
    using = reader_of(name)
    grammar = schema_grammar(json.dumps(MAKERS[index][0])).grammar
    if is_spaced:
        rules = {rule: with_spaces(expr) for rule, expr in grammar.rules.items()}
        grammar = Grammar(rules, grammar.root)
    found: list[Callable[[], Guide]] = []
    for engine, text in notations(grammar):
        compiler = using.engines.xgrammar if engine == "xgrammar" else using.engines.llguidance
        engine_grammar = compiler.compile(text, is_json=True, param="x")
        found.append(CompiledGrammar(engine, engine_grammar, using.token_bytes).guide)
    return found


@pytest.mark.parametrize("is_spaced", [False, True], ids=["compact", "spaced"])
@pytest.mark.parametrize("name", READERS)
def test_forced_tokens_are_those_of_the_whole_text(name: str, is_spaced: bool) -> None:
    using = reader_of(name)
    num_tokens = num_forced = 0
    engines = set[int]()
    for index, text in documents(is_spaced):
        token_ids = using.encode(text)
        for engine, new_guide in enumerate(guides(name, index, is_spaced)):
            guide, done, rest = new_guide(), 0, text.encode()
            while done < len(token_ids):
                assert rest.startswith(guide.forced()), (rest, guide.forced())
                jump = using.jumper.run(guide, token_ids[:done], PLENTY, may_respell=done > 0)
                assert not jump.respells, "it was right already"
                forced = list(jump.ids)
                if forced and forced[-1] == using.stop_id:
                    forced.pop()
                    assert done + len(forced) == len(token_ids)
                taken = forced or [token_ids[done]]
                assert taken == token_ids[done : done + len(taken)], (text, done)
                assert all(map(guide.accept, taken))
                num_forced += len(forced)
                done += len(taken)
                rest = rest[sum(len(using.token_bytes[token_id]) for token_id in taken) :]
            assert guide.is_completed and not rest
            num_tokens += len(token_ids)
            engines.add(engine)
    assert len(engines) == 2 and num_forced > 0.15 * num_tokens, (num_forced, num_tokens)


# -- single cases ----------------------------------------------------------------------------------


def texts_after(using: Reader, constraint: Constraint, text: str) -> list[bytes]:
    """The tokens that are forced after a text, as bytes."""
    guide = compiled(using, constraint).guide()
    token_ids = using.encode(text)
    assert all(map(guide.accept, token_ids))
    jump = using.jumper.run(guide, token_ids, PLENTY)
    return [using.token_bytes[token_id] for token_id in jump.ids]


def forced_after(using: Reader, constraint: Constraint, text: str = "") -> bytes:
    return b"".join(texts_after(using, constraint, text))


@pytest.mark.parametrize("name", READERS)
def test_no_jump_goes_into_a_character_or_a_choice(name: str) -> None:
    using = reader_of(name)
    stop = using.token_bytes[using.stop_id]
    assert forced_after(using, Regex("(é|è)x")) == b""
    assert forced_after(using, Regex("(é|è)x"), "è") == b"x" + stop
    assert forced_after(using, OneOf(("娃娃领", "高领"))) == b""
    assert "娃娃领".encode().startswith(forced_after(using, OneOf(("娃娃领", "娃娃")))[:6])
    assert b"order".startswith(forced_after(using, OneOf(("orderId", "orderName"))))
    assert forced_after(using, Regex("[ab]c?"), "a") == b""


def test_a_word_that_may_go_on_is_not_cut() -> None:
    """Forcing `order` would take the usual spelling from `orders` and `orderly`."""
    using = reader_of("smollm2")
    pieces = texts_after(using, Regex(" (order|orders|orderly)"), "")
    whole = [using.encode(text) for text in (" order", " orders", " orderly")]
    for token_ids in whole:
        assert [using.token_bytes[i] for i in token_ids][: len(pieces)] == pieces


@pytest.mark.parametrize("name", READERS)
def test_a_mask_after_forced_tokens_is_that_after_their_bytes(name: str) -> None:
    using = reader_of(name)
    guide = compiled(using, JsonSchema(json.dumps(_CITY))).guide()
    token_ids = using.jumper.run(guide, [], PLENTY).ids
    by_bytes = guide.fork()
    single = {text: index for index, text in enumerate(using.token_bytes) if len(text) == 1}
    data = b"".join(using.token_bytes[token_id] for token_id in token_ids)
    assert token_ids and all(map(guide.accept, token_ids))
    assert all(by_bytes.accept(single[bytes((byte,))]) for byte in data)
    rows = [np.zeros(-(-len(using.token_bytes) // 32), np.int32) for _ in range(2)]
    assert guide.fill(rows[0], PLENTY) and by_bytes.fill(rows[1], PLENTY)
    assert (rows[0] == rows[1]).all()


def test_text_that_looks_like_a_control_token_stays_text() -> None:
    using = reader_of("smollm2")
    constraint = JsonSchema('{"const":"<|im_end|>"}')
    pieces = texts_after(using, constraint, "")
    assert b"".join(pieces[:-1]) == b'"<|im_end|>"' and b"<|im_end|>" not in pieces[:-1]


@pytest.mark.parametrize("name", ["lower case", "prefix space"])
def test_a_tokenizer_that_changes_texts_gets_no_jumps(name: str) -> None:
    using = reader_of(name)
    assert forced_after(using, OneOf(("Whole Text",))) == b""


def tiny(merges: dict[str, list[int]]) -> Reader:
    """Letters, "bc" and an end; `merges`: how texts of more than a letter are read."""
    texts = [b"a", b"b", b"c", b"d", b"bc", b"<end>"]

    def encode(text: str) -> list[int]:
        return merges.get(text) or [b"abcd".index(letter) for letter in text.encode()]

    return reader(encode, texts, [5], [5])


def test_only_what_nobody_has_seen_is_respelled() -> None:
    """`b` and the forced `c` are one token."""
    using = tiny({"abcd": [0, 4, 3], "bcd": [4, 3]})
    guide = compiled(using, Regex("a[bd]cd[ab]")).guide()
    assert guide.accept(0) and guide.accept(1)
    assert guide.forced() == b"cd"
    assert using.jumper.run(guide, [0, 1], PLENTY) == NO_JUMP
    jump = using.jumper.run(guide, [0, 1], PLENTY, may_respell=True)
    assert jump.respells and jump.ids == (4, 3) and jump.accepted == (2, 3)
    assert all(map(guide.accept, jump.accepted)) and guide.forced() == b""


def test_earlier_tokens_are_never_respelled() -> None:
    using = tiny({"abcd": [0, 4, 3]})
    guide = compiled(using, Regex("a[bd][cd]d[ab]")).guide()
    assert all(map(guide.accept, (0, 1, 2)))
    assert guide.forced() == b"d"
    assert using.jumper.run(guide, [0, 1, 2], PLENTY, may_respell=True) == NO_JUMP


def test_a_respelling_that_may_turn_out_wrong_is_none() -> None:
    """After `b` the forced `c` makes them one token, unless a longer one comes."""
    texts = [b"a", b"b", b"c", b"d", b"bc", b"bcd", b"<end>"]
    using = reader(lambda text: [4] if text == "bc" else [1], texts, [6], [6])
    guide = compiled(using, Regex("[ab]c[ad]")).guide()
    assert guide.accept(1) and guide.forced() == b"c"
    assert using.jumper.run(guide, [1], PLENTY, may_respell=True) == NO_JUMP


def test_near_the_limit_nothing_is_forced_that_might_not_fit() -> None:
    using = reader_of("words")
    grammar = compiled(using, JsonSchema(json.dumps(_CITY)))
    found = [len(using.jumper.run(grammar.guide(), [], left).ids) for left in range(80)]
    assert found[0] == 0 and found[-1] > 0
    rng = random.Random(2)
    for left in range(80):
        if found[left]:
            end_whole(using, grammar, json.dumps(_CITY), left, rng)


def end_whole(
    using: Reader, grammar: CompiledGrammar, schema: str, budget: int, rng: random.Random
) -> int:
    """Take jumps wherever there are any, and any allowed tokens between: within the budget the
    text is whole and valid. How many tokens were forced."""
    row = np.zeros(-(-len(using.token_bytes) // 32), np.int32)
    guide, ids, num_forced = grammar.guide(), list[int](), 0
    while not guide.is_terminated and len(ids) < budget:
        jump = using.jumper.run(guide, ids, budget - len(ids), may_respell=bool(ids))
        assert all(map(guide.accept, jump.accepted))
        num_forced += len(jump.ids) - jump.respells
        ids = ids[: len(ids) - jump.respells] + list(jump.ids)
        if not guide.is_terminated and len(ids) < budget:
            assert guide.fill(row, budget - len(ids)), "a dead end"
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            ids.append(int(rng.choice(allowed.tolist())))
            assert guide.accept(ids[-1])
    assert len(ids) <= budget and guide.is_completed
    text = b"".join(using.token_bytes[i] for i in ids if i != using.stop_id).decode()
    assert validate_json(schema, text).valid is True, text
    return num_forced


@pytest.mark.parametrize("schema", [_CITY, _TREE, _ORDER, _FREE_KEYS])
def test_with_jumps_every_budget_that_is_enough_ends_whole(schema: Any) -> None:
    using = reader_of("words")
    grammar = compiled(using, JsonSchema(json.dumps(schema)))
    rng = random.Random(11)
    budgets = range(grammar.min_tokens, grammar.min_tokens + 40)
    num_forced = sum(end_whole(using, grammar, json.dumps(schema), b, rng) for b in budgets)
    assert num_forced > 100


def test_a_caller_s_own_grammar_is_forced_up_to_the_limit() -> None:
    using = reader_of("words")
    guide = compiled(using, Ebnf('root ::= "population" [0-9]')).guide()
    whole = using.jumper.run(guide, [], PLENTY).ids
    assert b"".join(using.token_bytes[i] for i in whole) == b"population"
    for left in range(len(whole) + 2):
        assert using.jumper.run(guide, [], left).ids == whole[:left]
