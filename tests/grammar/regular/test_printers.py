"""What is printed means the same to the engine that reads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import (
    EPSILON,
    NOTHING,
    TEXT,
    CharSet,
    NotPrintable,
    Regex,
    both,
    chars,
    ebnf_expression,
    ebnf_rules,
    lark_rules,
    lark_terminals,
    literal,
    matches,
    negated,
    repeat,
    rust_regex,
    seq,
    to_dfa,
    whole_language,
)
from tests.grammar_bytes import ebnf_acceptance, lark_acceptance
from tests.linear_regex import re2_matches
from tests.regular_terms import UNIVERSE, Term, plain_terms, terms

# Every character that some notation gives a meaning to, and some from other planes.
PUNCTUATION = "".join(map(chr, range(0x20, 0x7F))) + "\t\n\r\0\x7f\x85é\u2028\ufeff🐲\U0010ffff"
SAMPLE = sorted(UNIVERSE, key=len)[::7]


def lark_of(regex: Regex) -> str:
    return "\n".join(["start: TEXT", *lark_terminals(regex, "TEXT")])


@settings(deadline=None)
@given(plain_terms)
def test_rust_syntax(term: Term) -> None:
    """RE2 reads the same syntax, but for larger counts."""
    source = rust_regex(term.regex)
    assert {text for text in UNIVERSE if re2_matches(source, text)} == term.strings


@settings(deadline=None, max_examples=40)
@given(terms.filter(lambda term: bool(term.strings - {""})))
def test_lark(term: Term) -> None:
    try:
        grammar = lark_of(term.regex)
    except NotPrintable:
        return
    accepts = lark_acceptance(grammar)
    for text in SAMPLE:
        if text:
            assert accepts(text) == (text in term.strings), (text, grammar)


@settings(deadline=None, max_examples=40)
@given(plain_terms.filter(lambda term: term.regex is not NOTHING))
def test_ebnf(term: Term) -> None:
    grammar = f"root ::= {ebnf_expression(term.regex)}"
    accepts = ebnf_acceptance(grammar)
    for text in SAMPLE:
        assert accepts(text) == (text in term.strings), (text, grammar)


@settings(deadline=None, max_examples=40)
@given(terms.filter(lambda term: bool(term.strings)))
def test_ebnf_rules(term: Term) -> None:
    grammar = "\n".join(ebnf_rules(to_dfa(term.regex), "root"))
    accepts = ebnf_acceptance(grammar)
    for text in SAMPLE:
        assert accepts(text) == (text in term.strings), (text, grammar)


@settings(deadline=None, max_examples=40)
@given(terms.filter(lambda term: bool(term.strings)))
def test_lark_rules(term: Term) -> None:
    grammar = "\n".join(["start: text", *lark_rules(to_dfa(term.regex), "text")])
    accepts = lark_acceptance(grammar)
    for text in SAMPLE:
        assert accepts(text) == (text in term.strings), (text, grammar)


@settings(deadline=None, max_examples=30)
@given(st.text(PUNCTUATION, min_size=1, max_size=4), st.sampled_from(PUNCTUATION))
def test_all_punctuation_is_escaped(letters: str, other: str) -> None:
    charset = CharSet.from_chars(letters)
    for regex in (chars(charset), chars(charset.complement()), literal(letters)):
        texts = [*letters, other, letters]
        expected = [matches(regex, text) for text in texts]
        assert [re2_matches(rust_regex(regex), text) for text in texts] == expected
        assert [*map(lark_acceptance(lark_of(regex)), texts)] == expected
        assert [*map(ebnf_acceptance(f"root ::= {ebnf_expression(regex)}"), texts)] == expected


def test_large_counts() -> None:
    regex = whole_language("[0-9]{2,5000}(?:ab){300}")
    text = "12" + "ab" * 300
    assert lark_acceptance(lark_of(regex))(text)
    assert not lark_acceptance(lark_of(regex))(text[1:])


def test_what_can_not_be_printed() -> None:
    mixed = seq(literal("a"), both(TEXT, negated(literal("b"))))
    for regex in (mixed, NOTHING):
        with pytest.raises(NotPrintable):
            ebnf_expression(regex)
    with pytest.raises(NotPrintable):
        rust_regex(mixed)
    with pytest.raises(NotPrintable):
        lark_terminals(NOTHING, "TEXT")
    with pytest.raises(NotPrintable):
        ebnf_rules(to_dfa(NOTHING), "root")
    with pytest.raises(NotPrintable):
        lark_rules(to_dfa(NOTHING), "text")


def test_a_small_term_that_is_long_when_written_is_not_printed() -> None:
    regex = literal("ab")
    for letter in "cdefghijklmnopqrstuvwxyz":
        regex = seq(repeat(seq(regex, literal(letter)), 0, 2), regex)
    for write in (rust_regex, ebnf_expression):
        with pytest.raises(NotPrintable):
            write(regex)


PRINT_ALL = """
from espalier.runtime.grammar.regular import *
from espalier.runtime.grammar.schema.formats import format_language
regex = search_language("^(?!ab|cd).*([xyz]|ab|.c){2,7}")
print(lark_terminals(json_spelled(regex), "T"), ebnf_rules(minimized(to_dfa(regex)), "r"))
print(rust_regex(format_language("uri")), shortest(regex))
"""


def test_every_process_prints_the_same() -> None:
    """Compiled grammars are cached by their text."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_ALL],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_the_empty_text() -> None:
    assert re2_matches(rust_regex(EPSILON), "")
    assert ebnf_acceptance(f"root ::= {ebnf_expression(EPSILON)}")("")
