"""Terms as plain data and back, each written once below those that use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .charset import CharSet
from .construct import EPSILON, alt, automaton, both, chars, negated, repeat, seq
from .dfa import Dfa
from .nodes import Alt, Automaton, Both, Chars, Epsilon, Negated, Regex, Repeat, Seq, parts


def to_terms(regex: Regex, terms: list[Any], numbers: dict[Regex, int]) -> int:
    """Append `regex` and what it is made of to `terms`; its index. `numbers` knows what is there
    already. Lists, strings and integers only."""
    known = numbers.get(regex)
    if known is None:
        plain = _plain(regex, terms, numbers)
        known = numbers[regex] = len(terms)
        terms.append(plain)
    return known


def from_terms(terms: Sequence[Any]) -> list[Regex]:
    """All of what `to_terms` appended, by index."""
    found: list[Regex] = []
    for plain in terms:
        found.append(_regex(plain, found))
    return found


def _plain(regex: Regex, terms: list[Any], numbers: dict[Regex, int]) -> list[Any]:
    def inner(part: Regex) -> int:
        return to_terms(part, terms, numbers)

    match regex:
        case Chars(charset=charset):
            return ["chars", *charset.ranges]
        case Epsilon():
            return ["epsilon"]
        case Seq():
            return ["seq", *map(inner, parts(regex))]
        case Alt(members=members):
            return ["alt", *map(inner, members)]
        case Repeat(body=body, lo=lo, hi=hi):
            return ["repeat", inner(body), lo, hi]
        case Both(members=members):
            return ["both", *map(inner, members)]
        case Negated(body=body):
            return ["negated", inner(body)]
        case Automaton(dfa=dfa, state=state):
            table = [[(t, *charset.ranges) for charset, t in row] for row in dfa.transitions]
            return ["automaton", state, sorted(dfa.accepting), *table]
        case _:
            raise AssertionError(regex)


def _regex(plain: Sequence[Any], found: Sequence[Regex]) -> Regex:
    def inner(indices: Sequence[int]) -> list[Regex]:
        return [found[index] for index in indices]

    match plain:
        case ["chars", *ranges]:
            return chars(_charset(ranges))
        case ["epsilon"]:
            return EPSILON
        case ["seq", *members]:
            return seq(*inner(members))
        case ["alt", *members]:
            return alt(*inner(members))
        case ["repeat", body, lo, hi]:
            return repeat(inner([body])[0], lo, hi)
        case ["both", *members]:
            return both(*inner(members))
        case ["negated", body]:
            return negated(inner([body])[0])
        case ["automaton", state, accepting, *table]:
            rows = tuple(tuple((_charset(ranges), t) for t, *ranges in row) for row in table)
            return automaton(Dfa(rows, frozenset(accepting)), state)
        case _:
            raise AssertionError(plain)


def _charset(ranges: Sequence[Sequence[int]]) -> CharSet:
    return CharSet((first, last) for first, last in ranges)
