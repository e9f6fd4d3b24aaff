"""Constructors, derivatives and questions against sets of short strings."""

from __future__ import annotations

from hypothesis import given, settings

from espalier.runtime.grammar.regular import (
    EPSILON,
    NOTHING,
    TEXT,
    CharSet,
    alt,
    are_disjoint,
    automaton,
    both,
    chars,
    derivative,
    expression_of,
    finite_strings,
    includes,
    is_empty,
    literal,
    matches,
    minimized,
    negated,
    nonempty,
    repeat,
    seq,
    shortest,
    to_dfa,
    with_length,
)
from tests.regular_terms import ALPHABET, UNIVERSE, Term, plain_terms, short_strings, terms

A, B = literal("a"), literal("b")


@settings(deadline=None)
@given(terms)
def test_matches(term: Term) -> None:
    assert short_strings(term.regex) == term.strings
    for text in list(UNIVERSE)[::17]:
        assert matches(term.regex, text) == (text in term.strings)
    assert term.regex.nullable == ("" in term.strings)


@settings(deadline=None)
@given(terms)
def test_a_derivative_is_what_follows(term: Term) -> None:
    for letter in ALPHABET:
        rest = short_strings(derivative(term.regex, ord(letter)))
        for text in UNIVERSE:
            if letter + text in UNIVERSE:
                assert (text in rest) == (letter + text in term.strings)


@settings(deadline=None)
@given(terms)
def test_emptiness_and_shortest_strings(term: Term) -> None:
    example = shortest(term.regex)
    assert is_empty(term.regex) == (example is None)
    if example is None:
        assert not term.strings
    else:
        assert matches(term.regex, example)
        assert len(example) <= min(map(len, term.strings), default=len(example))


@settings(deadline=None)
@given(terms, terms)
def test_disjointness_and_inclusion(left: Term, right: Term) -> None:
    common = shortest(both(left.regex, right.regex))
    assert are_disjoint(left.regex, right.regex) == (common is None)
    assert common is not None or not left.strings & right.strings
    missing = shortest(both(right.regex, negated(left.regex)))
    assert includes(left.regex, right.regex) == (missing is None)
    if missing is None:
        assert right.strings <= left.strings
    else:
        assert matches(right.regex, missing) and not matches(left.regex, missing)


@settings(deadline=None)
@given(terms)
def test_finite_strings_are_all_or_none(term: Term) -> None:
    found = finite_strings(term.regex, limit=400)
    if found is None:
        # Then it goes on: beyond the longest of 400 strings, or by more strings than that.
        dfa = to_dfa(both(term.regex, negated(alt(*map(literal, term.strings)))))
        assert dfa.accepting
    else:
        assert set(found) & UNIVERSE == term.strings
        assert all(matches(term.regex, text) for text in found)
        assert list(found) == sorted(set(found), key=lambda text: (len(text), text))
        rest = both(term.regex, negated(alt(*map(literal, found))))
        assert is_empty(rest)


@settings(deadline=None)
@given(terms)
def test_automata(term: Term) -> None:
    dfa = to_dfa(term.regex)
    smallest = minimized(dfa)
    assert len(smallest.transitions) <= len(dfa.transitions)
    for regex in (automaton(dfa), automaton(smallest)):
        assert short_strings(regex) == term.strings
    assert len(minimized(to_dfa(automaton(smallest))).transitions) == len(smallest.transitions)


@settings(deadline=None)
@given(terms)
def test_an_expression_of_an_automaton(term: Term) -> None:
    dfa = minimized(to_dfa(term.regex))
    if len(dfa.transitions) <= 6:
        regex = expression_of(dfa, max_terms=1_000_000)
        assert regex.is_plain
        assert short_strings(regex) == term.strings


@settings(deadline=None)
@given(terms)
def test_without_the_empty_string(term: Term) -> None:
    regex = nonempty(term.regex)
    assert short_strings(regex) == term.strings - {""}


@settings(deadline=None)
@given(terms)
def test_lengths(term: Term) -> None:
    for lo in (0, 1, 3):
        for hi in (None, 0, 1, 3):
            regex = with_length(term.regex, lo, hi)
            assert short_strings(regex) == {
                text for text in term.strings if lo <= len(text) and (hi is None or len(text) <= hi)
            }


def test_lengths_go_into_the_part_that_varies() -> None:
    name = seq(A, repeat(chars(CharSet.of("az")), 0, None))
    assert with_length(name, 3, 64) is seq(A, repeat(chars(CharSet.of("az")), 2, 63))
    pairs = repeat(literal("ab"))
    assert with_length(pairs, 3, 9) is repeat(literal("ab"), 2, 4)


@settings(deadline=None)
@given(plain_terms)
def test_only_nothing_is_a_plain_empty_language(term: Term) -> None:
    assert term.regex.is_plain
    assert is_empty(term.regex) == (term.regex is NOTHING)


def test_equal_terms_are_one() -> None:
    assert seq(A, B) is literal("ab")
    assert alt(A, B) is alt(B, A) is chars(CharSet.of("ab"))
    assert alt(literal("ab"), alt(literal("ba"), literal("ab"))) is alt(
        literal("ba"), literal("ab")
    )
    assert repeat(repeat(A)) is repeat(A)
    assert repeat(repeat(A, 1, 3), 1, 2) is repeat(A, 1, 6)
    assert seq(A, repeat(A)) is repeat(A, 1)
    assert alt(EPSILON, repeat(A, 1)) is repeat(A)
    assert seq(repeat(A, 1, 2), repeat(A, 0, 3)) is repeat(A, 1, 5)
    assert negated(negated(literal("ab"))) is literal("ab")
    assert both(TEXT, literal("ab")) is literal("ab")
    assert both(literal("ab"), negated(literal("ab"))) is NOTHING
    assert alt(literal("ab"), negated(literal("ab"))) is TEXT


def test_counts_cost_nothing_where_no_search_is_needed() -> None:
    long = seq(repeat(A, 5000, 9000), repeat(alt(literal("ab"), B), 0, 10**9))
    assert shortest(long) == "a" * 5000
    assert not is_empty(long)
    assert finite_strings(long, 10) is None
    assert finite_strings(repeat(A, 3, 5), 3) == ("aaa", "aaaa", "aaaaa")


def test_long_sequences_do_not_exhaust_the_stack() -> None:
    text = "ab" * 5000
    assert matches(literal(text), text)
    optional = seq(*(repeat(literal(letter), 0, 1) for letter in text))
    assert shortest(seq(optional, A)) == "a"
    assert derivative(seq(optional, literal("c")), ord("c")) is EPSILON


def test_a_lone_surrogate_is_in_no_language() -> None:
    assert literal("a\ud800") is NOTHING
    assert not matches(TEXT, "\udfff")


def test_shortest_prefers_plain_characters() -> None:
    assert shortest(repeat(chars(CharSet.of("\0\x7f")), 2)) == "aa"
    assert shortest(both(repeat(chars(CharSet.of("\0\x7f")), 2), negated(literal("aa")))) == "a0"
