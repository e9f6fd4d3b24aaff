"""Random regular expressions with a naive oracle: the sets of their short strings.

A `Term` is built twice: as a `Regex`, and as the set of its strings of up to `MAX_LENGTH`
characters of `ALPHABET`, by nothing but set operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from espalier.runtime.grammar.regular import (
    CharSet,
    Derivatives,
    Regex,
    alt,
    automaton,
    both,
    chars,
    negated,
    repeat,
    seq,
    to_dfa,
)

ALPHABET = 'ab"\n'
MAX_LENGTH = 4
UNIVERSE = frozenset(
    "".join(letters)
    for length in range(MAX_LENGTH + 1)
    for letters in product(ALPHABET, repeat=length)
)


def short_strings(regex: Regex) -> frozenset[str]:
    """Those of `UNIVERSE` that the expression matches."""
    derivatives = Derivatives(None)
    found: list[str] = []
    states = [("", regex)]
    for text, state in states:
        if state.nullable:
            found.append(text)
        if len(text) < MAX_LENGTH:
            states.extend(
                (text + letter, derivatives.of(state, ord(letter))) for letter in ALPHABET
            )
    return frozenset(found)


@dataclass(frozen=True)
class Term:
    regex: Regex
    strings: frozenset[str]

    def __repr__(self) -> str:
        return f"Term({self.regex!r})"


def _chars(letters: str, is_complement: bool) -> Term:
    charset = CharSet.from_chars(letters)
    strings = frozenset(letters)
    if is_complement:
        return Term(chars(charset.complement()), frozenset(ALPHABET) - strings)
    return Term(chars(charset), strings)


def _seq(terms: list[Term]) -> Term:
    strings = frozenset({""})
    for term in terms:
        strings = _joined(strings, term.strings)
    return Term(seq(*(term.regex for term in terms)), strings)


def _joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a + b) <= MAX_LENGTH)


def _alt(terms: list[Term]) -> Term:
    return Term(
        alt(*(term.regex for term in terms)),
        frozenset[str]().union(*(term.strings for term in terms)),
    )


def _both(terms: list[Term]) -> Term:
    strings = UNIVERSE.intersection(*(term.strings for term in terms))
    return Term(both(*(term.regex for term in terms)), strings)


def _negated(term: Term) -> Term:
    return Term(negated(term.regex), UNIVERSE - term.strings)


def _repeat(term: Term, counts: tuple[int, int | None]) -> Term:
    lo, more = counts
    power = frozenset({""})
    for _ in range(lo):
        power = _joined(power, term.strings)
    strings = power
    for _ in range(MAX_LENGTH if more is None else more):
        power = _joined(power, term.strings)
        strings |= power
    return Term(repeat(term.regex, lo, None if more is None else lo + more), strings)


def _automaton(term: Term) -> Term:
    return Term(automaton(to_dfa(term.regex)), term.strings)


_leaves = st.builds(_chars, st.text(ALPHABET, max_size=3), st.booleans()) | st.just(_seq([]))
_counts = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3))


def _plain(children: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    several = st.lists(children, min_size=1, max_size=3)
    repeated = st.builds(_repeat, children, _counts)
    return several.map(_seq) | several.map(_alt) | repeated


def _full(children: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    several = st.lists(children, min_size=1, max_size=3)
    return _plain(children) | several.map(_both) | children.map(_negated)


plain_terms = st.recursive(_leaves, _plain, max_leaves=6)
terms = st.recursive(
    _leaves | st.recursive(_leaves, _plain, max_leaves=3).map(_automaton), _full, max_leaves=6
)
