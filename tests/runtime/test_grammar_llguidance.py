"""llguidance behind the same face as xgrammar: masks, ends, forks, and errors that stay small."""

from __future__ import annotations

import re

import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.llguidance_engine import LlguidanceCompiler
from espalier.runtime.grammar.xgrammar_engine import XgrammarCompiler
from tests.grammar_walks import Walker, allowed_ids

PIECES = ['{"', '":', '","', '"}', "true", "12", "-1", "\n", " ", "北", "ab", "abc", '\\"', '"\n']
BYTES = [bytes([i]) for i in range(256)]
IM_START, IM_END, END = 256, 257, 258
UNUSED = 259
TOKENS = [
    *BYTES,
    *(b"<|im_start|>", b"<|im_end|>", b"</s>", b""),
    *(piece.encode() for piece in PIECES),
    *(b"a\xed", b"\xed\xa0\x80", b"\x80\xed"),
]
STOPS = (IM_END, END)
WIDTH = len(TOKENS) + 7
ALWAYS_MASKED = {IM_START, UNUSED, *range(len(TOKENS), WIDTH)}
CONTROLS = (IM_START, IM_END, END)

PERSON = r"""start: "{\"name\":" STR ",\"age\":" INT "}"
STR: /"([^"\\\x00-\x1f]|\\["\\\/bfnrt]){0,9}"/
INT: /-?(0|[1-9][0-9]{0,3})/
"""
NESTED = 'start: "(" start ")" | /[0-9]+/\n'
EXACT = 'start: "ab" "c"\n'


@pytest.fixture(scope="module")
def compiler() -> LlguidanceCompiler:
    return LlguidanceCompiler(TOKENS, control_ids=CONTROLS, stop_ids=STOPS, vocab_width=WIDTH)


EBNF = {"(ab|abc)*c?": '("ab" | "abc")* "c"?', '[a-f"\\n]{2,6}': '[a-f"\\n]{2,6}'}


def texts_of(
    compiler: LlguidanceCompiler, lark: str, num_steps: int, *, is_json: bool
) -> list[str]:
    grammar = compiler.compile(lark, is_json=is_json, param="x")
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


@pytest.mark.parametrize(
    ("lark", "pattern"),
    [
        (PERSON, r'\{"name":"([^"\\\x00-\x1f]|\\["\\/bfnrt]){0,9}","age":-?(0|[1-9][0-9]{0,3})\}'),
        (NESTED, r"\(*[0-9]+\)*"),
        (EXACT, "abc"),
        ("start: /[^a]{0,5}/\n", r"(?s)[^a]{0,5}"),
    ],
    ids=["json", "nested", "exact", "class"],
)
def test_walks_match(compiler: LlguidanceCompiler, lark: str, pattern: str) -> None:
    for text in texts_of(compiler, lark, 400, is_json=lark == PERSON):
        assert re.fullmatch(pattern, text), text


def test_both_engines_allow_the_same(compiler: LlguidanceCompiler) -> None:
    xgrammar = XgrammarCompiler(TOKENS, control_ids=CONTROLS, stop_ids=STOPS, vocab_width=WIDTH)
    for pattern, text in (("(ab|abc)*c?", "ababcc"), ('[a-f"\\n]{2,6}', 'a"\n')):
        ebnf = f"root ::= {EBNF[pattern]}"
        one = xgrammar.compile(ebnf, is_json=False, param="x").matcher()
        other = compiler.compile(f"start: /{pattern}/\n", is_json=False, param="x").matcher()
        for token_id in (*text.encode(), END):
            assert allowed_ids(one, WIDTH) == allowed_ids(other, WIDTH), text
            assert one.is_completed == other.is_completed
            assert one.accept(token_id) and other.accept(token_id)
        assert one.is_terminated and other.is_terminated


def test_what_is_refused_changes_nothing(compiler: LlguidanceCompiler) -> None:
    matcher = compiler.compile(EXACT, is_json=False, param="x").matcher()
    for token_id in (*ALWAYS_MASKED, *STOPS, ord("b"), -1, WIDTH + 100, 2**40):
        assert not matcher.accept(token_id)
    assert {TOKENS[i] for i in allowed_ids(matcher, WIDTH)} == {b"a", b"ab", b"abc"}
    assert matcher.accept(TOKENS.index(b"abc")) and matcher.is_completed
    assert not matcher.accept(ord("c"))
    assert allowed_ids(matcher, WIDTH) == set(STOPS)
    assert not matcher.is_terminated
    assert matcher.accept(END) and matcher.is_terminated and matcher.is_completed
    assert not matcher.accept(END)


def test_a_fork_goes_its_own_way(compiler: LlguidanceCompiler) -> None:
    matcher = compiler.compile("start: /[ab]{2}/\n", is_json=False, param="x").matcher()
    assert matcher.accept(ord("a"))
    fork = matcher.fork()
    assert fork.accept(ord("b")) and fork.accept(END)
    assert fork.is_terminated and not matcher.is_completed
    assert allowed_ids(matcher, WIDTH) == {ord("a"), ord("b")}
    assert fork.fork().is_terminated


def test_requests_that_share_a_grammar_do_not_meet(
    compiler: LlguidanceCompiler,
) -> None:
    grammar = compiler.compile(EXACT, is_json=False, param="x")
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a"))
    assert {TOKENS[i] for i in allowed_ids(second, WIDTH)} == {b"a", b"ab", b"abc"}
    assert grammar.num_bytes > 0


def test_surrogates_never_come_byte_by_byte(
    compiler: LlguidanceCompiler,
) -> None:
    matcher = compiler.compile("start: /[^a]*/\n", is_json=False, param="x").matcher()
    assert matcher.accept(0xED)
    assert {TOKENS[i][0] for i in allowed_ids(matcher, WIDTH)} == set(range(0x80, 0xA0))


@pytest.mark.parametrize(
    ("lark", "words"),
    [
        ("", "start"),
        ("start: foo\n", "foo"),
        ('start: "a', "x: "),
        ("start: /(/\n", "x: "),
        ("start: /(?=a)b/\n", "x: "),
        ("start: start\n", "x: "),
        ("start: /a/ & /b/\n", "x: "),
        ("START: /a/ & /b/\nstart: START\n", "x: "),
        ("\0", "x: "),
        ("start: " + "(" * 20_000, "x: "),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_bad_grammars_are_refused_with_words(
    compiler: LlguidanceCompiler, lark: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as refused:
        compiler.compile(lark, is_json=False, param="x")
    assert refused.value.param == "x"


def test_an_error_on_the_way_allows_nothing_any_more(
    compiler: LlguidanceCompiler,
) -> None:
    """More ways to read the text than llguidance follows: this request has to end, and the
    next one has a matcher of its own."""
    lark = "start: (/a/ | start) (/a/ | start)\n"
    grammar = compiler.compile(lark, is_json=False, param="x")
    matcher = grammar.matcher()
    taken = 0
    while matcher.accept(ord("a")):
        taken += 1
    assert 10 < taken < 5000
    assert not allowed_ids(matcher, WIDTH) and not matcher.accept(END)
    assert not matcher.is_completed and not matcher.fork().accept(ord("a"))
    assert grammar.matcher().accept(ord("a"))
