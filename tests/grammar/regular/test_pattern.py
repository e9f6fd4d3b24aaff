"""ECMA-262 patterns: by example, against node's RegExp and against RE2."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import (
    NOTHING,
    TEXT,
    NotPrintable,
    PatternError,
    Regex,
    is_empty,
    literal,
    matches,
    search_language,
    search_pattern,
    whole_language,
)
from tests.ecma_patterns import NODE, PatternMaker, node_searches
from tests.linear_regex import re2_search

TEXTS = ["".join(letters) for n in range(4) for letters in product("ab1\n", repeat=n)] + [
    "aab1b",
    "  a",
    "_a",
    "é",
    "\u2028",
    "\ufeff",
    "𝒳a",
    "a" * 6,
]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_finds_the_same_matches() -> None:
    makers = [PatternMaker(seed) for seed in range(250)]
    patterns = [maker.pattern() for maker in makers]
    patterns += [maker.with_lookaheads() for maker in makers]
    patterns += [maker.with_lookaheads_anywhere() for maker in makers[:150]]
    for pattern, found in zip(patterns, node_searches(patterns, TEXTS), strict=True):
        language = search_language(pattern)
        assert [matches(language, text) for text in TEXTS] == found, pattern


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_finds_the_same_matches_of_repeated_lookaheads() -> None:
    languages: dict[str, Regex] = {}
    for seed in range(300):
        pattern = PatternMaker(seed).with_repeated_lookaheads()
        try:
            languages[pattern] = search_language(pattern)
        except PatternError as refused:  # the lookahead asks where the text starts
            assert "lookahead" in refused.trouble and "^" in pattern, pattern
    assert len(languages) > 200
    found = node_searches(list(languages), TEXTS)
    for (pattern, language), matched in zip(languages.items(), found, strict=True):
        assert [matches(language, text) for text in TEXTS] == matched, pattern


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_finds_the_same_whole_matches() -> None:
    patterns = [PatternMaker(seed).pattern() for seed in range(400, 500)]
    anchored = [f"^(?:{pattern})$" for pattern in patterns]
    for pattern, found in zip(patterns, node_searches(anchored, TEXTS), strict=True):
        language = whole_language(pattern)
        assert [matches(language, text) for text in TEXTS] == found, pattern


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_re2_finds_the_same_matches(seed: int) -> None:
    pattern = PatternMaker(seed).pattern()
    condition = search_pattern(pattern)
    language = search_language(pattern)
    for text in TEXTS:
        assert condition.holds(text, re2_search) == matches(language, text), (pattern, text)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_re2_with_lookaheads_at_the_start(seed: int) -> None:
    pattern = PatternMaker(seed).with_lookaheads()
    language = search_language(pattern)
    condition = search_pattern(pattern)
    for text in TEXTS:
        assert condition.holds(text, re2_search) == matches(language, text), (pattern, text)


def test_re2_is_not_asked_for_what_it_cannot_do() -> None:
    for pattern in ("a(?=b)", "(?!a)b", "(?:a{500}b){500}", "a{1001}"):
        with pytest.raises(NotPrintable):
            search_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^\d{2,3}$", ["12", "123"], ["1", "1234", "١٢", "12\n"]),
        (r"b+", ["b", "abba", "b\n"], ["", "a"]),
        (r"^a|b$", ["ax", "xb"], ["xa", "bx", ""]),
        (r"a{,2}", ["a{,2}"], ["aa"]),
        (r"^{x}$", ["{x}"], ["x"]),
        (r"^x{2", ["x{2"], ["xx"]),
        (r"^[\w-.]+$", ["a-b.c"], ["a b"]),
        (r"^[]$", [], ["", "a", "]"]),
        (r"^[^]$", ["\n", "é"], ["", "ab"]),
        (r"^[a\-\]]$", ["a", "-", "]"], ["\\"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\x41\u0042\u{43}\cJ\0\/\-$", ["ABC\n\0/-"], ["ABC"]),
        (r"^\ud83d\udc32[\ud83d\udc32-\ud83d\udc33]$", ["🐲🐳"], ["🐲"]),
        (r"^🐲*$", ["", "🐲🐲"], ["🐉"]),
        (r"^.$", ["a", "é", "🐲", "\x85"], ["\n", "\r", "\u2028", "\u2029", ""]),
        (r"^\s$", [" ", "\ufeff", "\u3000", "\v"], ["\x1c", "\x85", "\u200b"]),
        (r"^\p{Lu}\p{gc=Ll}\P{L}$", ["Éa1", "Aé "], ["aaa", "AAa"]),
        (r"^\p{digit}$", ["0", "٣"], ["a"]),
        (r"^(?<year>\d{4})$", ["2024"], ["24"]),
        (r"^(?!foo).*$", ["", "fo", "xfoo"], ["foo", "foobar", "a\n"]),
        (r"(?=.*\d)(?=.*[a-z])^.{3,}$", ["ab1", "1ab"], ["ab", "abc", "123"]),
        (r"^((?!(a|A)b).)*$", ["", "a", "ba", "aa"], ["ab", "xxAbxx", "\n"]),
        (r"^(?=[^=]+$)(?!\s+$)(.|\n)+$", ["a", "a\n "], ["", " ", "a=b"]),
        (r"(^a|,)*$", ["a", ",a", "xx"], []),
        (r"^(^a|b){2}$", ["ab", "bb"], ["ba", "aa", "a"]),
        (r"^(?:(?:^a)?b){2}$", ["abb", "bb"], ["bab"]),
    ],
)
def test_examples(pattern: str, inside: list[str], outside: list[str]) -> None:
    language = search_language(pattern)
    assert [text for text in inside if not matches(language, text)] == []
    assert [text for text in outside if matches(language, text)] == []


def test_the_ends_of_a_whole_match_change_nothing() -> None:
    assert whole_language("^ab$") is whole_language("ab") is literal("ab")
    assert whole_language("^a$|b") is whole_language("a|b")
    assert search_language("^ab$") is literal("ab")
    assert search_language("") is search_language("a*") is search_language("^") is TEXT
    assert search_language("a^") is search_language("$a") is NOTHING
    assert is_empty(search_language("(?=a)$"))


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("(", 0),
        ("a)", 1),
        ("[a", 0),
        ("*a", 0),
        ("a**", 2),
        ("x{2}{3}", 4),
        ("^*", 0),
        ("(?=a)*", 0),
        ("a{3,2}", 1),
        ("[b-a]", 1),
        ("\\", 0),
        (r"ab\1", 2),
        (r"(?<n>a)\k<n>", 7),
        (r"a\b", 1),
        (r"\B", 0),
        ("a(?<=b)", 1),
        ("(?<!b)", 0),
        ("(?i)a", 0),
        ("(?P<n>a)", 0),
        (r"\x4", 0),
        (r"\u12", 0),
        (r"\u{110000}", 0),
        (r"\ud800", 0),
        (r"\ud800\u0041", 0),
        ("a\udc00", 1),
        (r"\Z", 0),
        (r"\p{Klingon}", 0),
        (r"\p{Script=Latin}", 0),
        (r"\pL", 0),
        (r"\01", 0),
        ("a{4294967296}", 1),
        ("(?:a(?=b))*", 0),
    ],
)
def test_what_is_refused(pattern: str, position: int) -> None:
    with pytest.raises(PatternError) as refused:
        search_language(pattern)
    assert refused.value.position == position


def test_depth_and_size_are_capped() -> None:
    for pattern in ("(" * 5000, "(?:" * 4000 + ")" * 4000, "(?=" * 60 + ")" * 60, "a" * 40_000):
        with pytest.raises(PatternError):
            search_language(pattern)
    assert matches(search_language("(" * 50 + "a" + ")*" * 50), "b")


def test_long_patterns_make_equal_terms_and_do_not_exhaust_the_stack() -> None:
    for pattern in ("ab" * 4000, "a?" * 4000, "^$" * 4000, "^" + "(?!a)" * 1000, "[^a]" * 2000):
        assert search_language(pattern) is search_language(pattern)
