"""Acceptance of texts, against the texts that a grammar derives by enumeration."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.cfg import (
    Call,
    Choice,
    Expr,
    Grammar,
    Lexeme,
    Repeat,
    Sequence,
    Text,
)
from espalier.runtime.grammar.regular import whole_language
from espalier.runtime.grammar.walk import Acceptance, TooManyThreads, Walk

MAX_LEN = 4
PATTERNS = {"a*": ["", "a", "aa", "aaa", "aaaa"], "(ab|b)": ["ab", "b"], "[ab]": ["a", "b"]}
ALL = ["".join(letters) for count in range(MAX_LEN + 1) for letters in product("ab", repeat=count)]
RULES = "rst"

Texts = frozenset[str]


def exprs() -> st.SearchStrategy[Expr]:
    """Calls stand after a letter, so that nothing is left recursive."""
    leaves: st.SearchStrategy[Expr] = st.one_of(
        st.sampled_from(["a", "b", "ab", "ba"]).map(Text),
        st.sampled_from(sorted(PATTERNS)).map(lambda pattern: Lexeme(whole_language(pattern))),
        st.sampled_from(RULES).map(lambda rule: Sequence((Text("a"), Call(rule)))),
    )
    return st.recursive(leaves, _composed, max_leaves=5)


def _composed(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    parts = st.lists(inner, max_size=3).map(tuple)
    bounds: st.SearchStrategy[tuple[int, int | None]] = st.sampled_from(
        [(0, None), (0, 1), (1, None), (2, 3), (1, 2)]
    )
    repeats = st.tuples(inner, bounds).map(lambda drawn: Repeat(drawn[0], *drawn[1]))
    return st.one_of(parts.map(Sequence), parts.map(Choice), repeats)


LANGUAGES = {whole_language(pattern): frozenset(texts) for pattern, texts in PATTERNS.items()}


def joined(left: Texts, right: Texts) -> Texts:
    return frozenset(a + b for a in left for b in right if len(a + b) <= MAX_LEN)


def texts_of(expr: Expr, known: dict[str, Texts]) -> Texts:
    match expr:
        case Text(text):
            return frozenset({text})
        case Lexeme(language):
            return LANGUAGES[language]
        case Call(rule):
            return known[rule]
        case Sequence(parts):
            found: Texts = frozenset({""})
            for part in parts:
                found = joined(found, texts_of(part, known))
            return found
        case Choice(options):
            return frozenset(text for option in options for text in texts_of(option, known))
        case Repeat(body, lo, hi):
            return repeated(texts_of(body, known), lo, hi)


def repeated(once: Texts, lo: int, hi: int | None) -> Texts:
    power: Texts = frozenset({""})
    for _ in range(lo):
        power = joined(power, once)
    found = power
    for _ in range(MAX_LEN if hi is None else hi - lo):
        power = joined(power, once)
        found |= power
    return found


def derived(grammar: Grammar) -> Texts:
    """All short texts: what the rules derive, until nothing new comes."""
    known: dict[str, Texts] = dict.fromkeys(grammar.rules, frozenset())
    while True:
        found = {name: texts_of(expr, known) for name, expr in grammar.rules.items()}
        if found == known:
            return known[grammar.root]
        known = found


@given(st.fixed_dictionaries({rule: exprs() for rule in RULES}))
@settings(max_examples=150, deadline=None)
def test_it_accepts_what_is_derived_and_nothing_else(rules: dict[str, Expr]) -> None:
    grammar = Grammar(rules, "r")
    accepting = Acceptance(grammar)
    try:
        accepted = {text for text in ALL if accepting.accepts(text)}
    except TooManyThreads:  # that is what it is for, and rare
        reject()
    assert accepted == derived(grammar)


@given(st.fixed_dictionaries({rule: exprs() for rule in RULES}))
@settings(max_examples=100, deadline=None)
def test_pruning_keeps_the_language(rules: dict[str, Expr]) -> None:
    grammar = Grammar(rules, "r")
    pruned = grammar.pruned()
    if pruned is None:
        assert not derived(grammar)
    else:
        assert derived(pruned) == derived(grammar)


def test_characters_of_several_bytes() -> None:
    accepting = Acceptance(Grammar({"r": Lexeme(whole_language("[é😀]+"))}, "r"))
    assert accepting.accepts("é😀é")
    assert not accepting.accepts("è") and not accepting.accepts("")


def test_a_grammar_with_too_many_readings_is_given_up() -> None:
    ways = (Sequence((Text("a"), Call("r"), Text(end))) for end in "bc")  # 2**n after n letters
    rules: dict[str, Expr] = {"r": Choice((*ways, Text("a")))}
    with pytest.raises(TooManyThreads):
        Acceptance(Grammar(rules, "r")).accepts("a" * 20)


@given(
    st.lists(st.text("aé", max_size=6).map(lambda text: "x" + text), max_size=30, unique=True),
    st.integers(0, 200),
)
@settings(deadline=None, max_examples=10)
def test_texts_of_a_long_choice(drawn: list[str], nesting: int) -> None:
    """Thousands of listed values are no thousands of threads."""
    listed = [f"{number:x}" for number in range(600)] + drawn + ["y" * i for i in range(nesting)]
    acceptance = Acceptance(Grammar({"r": Choice(tuple(map(Text, listed)))}, "r"))
    known = set(listed)
    for text in (
        *listed[::37],
        *drawn,
        "",
        "257",
        "258",
        "2570",
        "x",
        "xa",
        "y" * nesting,
        "ya",
        "0b",
    ):
        assert acceptance.accepts(text) == (text in known), text
    walk = Walk(Grammar({"r": Choice(tuple(map(Text, listed)))}, "r"))
    assert len(walk.start()[0]) < 50
