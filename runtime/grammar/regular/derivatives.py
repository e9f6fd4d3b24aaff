"""Brzozowski derivatives: what may follow a first symbol; and matching by them.

After Owens, Reppy and Turon, "Regular-expression derivatives re-examined" (2009): symbols that
no set of an expression tells apart have the same derivative, so one of each class is tried.
"""

from __future__ import annotations

from functools import lru_cache

from .charset import CharSet
from .construct import (
    EPSILON,
    NOTHING,
    alt,
    automaton,
    both,
    chain,
    negated,
    repeat,
)
from .errors import TooLarge
from .nodes import Alt, Automaton, Both, Chars, Epsilon, Negated, Regex, Repeat, Seq

DEFAULT_BUDGET = 50_000

Steps = tuple[tuple[CharSet, Regex], ...]


class Derivatives:
    """Derivatives remembered, so that a walk over many symbols is one over few states.

    budget: how many derivatives of terms, subterms too, may be computed in all before
    `TooLarge`; about 4 µs each. None: no limit.
    """

    def __init__(self, budget: int | None = DEFAULT_BUDGET) -> None:
        self._budget = budget
        self._spent = 0
        self._derivatives: dict[tuple[Regex, int], Regex] = {}
        self._heads: dict[Regex, frozenset[CharSet]] = {}
        self._steps: dict[Regex, Steps] = {}

    def of(self, regex: Regex, symbol: int) -> Regex:
        """What follows `symbol` in the strings of `regex` that begin with it."""
        key = (regex, symbol)
        found = self._derivatives.get(key)
        if found is None:
            self._spend()
            found = self._derivatives[key] = self._derive(regex, symbol)
        return found

    def _spend(self) -> None:
        self._spent += 1
        if self._budget is not None and self._spent > self._budget:
            raise TooLarge(f"more than {self._budget} derivatives")

    def steps(self, regex: Regex) -> Steps:
        """All derivatives but `NOTHING`, each with the symbols that lead there."""
        found = self._steps.get(regex)
        if found is None:
            targets: dict[Regex, CharSet] = {}
            for symbols in _partition(self._heads_of(regex)):
                target = self.of(regex, symbols.ranges[0][0])
                known = targets.get(target)
                targets[target] = symbols if known is None else known | symbols
            targets.pop(NOTHING, None)
            found = tuple((symbols, target) for target, symbols in targets.items())
            self._steps[regex] = found
        return found

    def _derive(self, regex: Regex, symbol: int) -> Regex:
        match regex:
            case Chars(charset=charset):
                return EPSILON if symbol in charset else NOTHING
            case Epsilon():
                return NOTHING
            case Seq():
                return self._derive_seq(regex, symbol)
            case Alt(members=members):
                return alt(*[self.of(member, symbol) for member in members])
            case Repeat(body=body, lo=lo, hi=hi):
                rest = repeat(body, max(lo - 1, 0), None if hi is None else hi - 1)
                return chain(self.of(body, symbol), rest)
            case Both(members=members):
                return both(*[self.of(member, symbol) for member in members])
            case Negated(body=body):
                return negated(self.of(body, symbol))
            case Automaton(dfa=dfa, state=state):
                target = dfa.next_state(state, symbol)
                return NOTHING if target is None else automaton(dfa, target)
            case _:
                raise AssertionError(regex)

    def _derive_seq(self, regex: Regex, symbol: int) -> Regex:
        """In a loop over the links that may be empty: there may be thousands."""
        options: list[Regex] = []
        while isinstance(regex, Seq):
            options.append(chain(self.of(regex.first, symbol), regex.rest))
            if not regex.first.nullable:
                return alt(*options)
            self._spend()
            regex = regex.rest
        options.append(self.of(regex, symbol))
        return alt(*options)

    def _heads_of(self, regex: Regex) -> frozenset[CharSet]:
        """The sets that can tell first symbols apart."""
        found = self._heads.get(regex)
        if found is None:
            found = self._heads[regex] = self._find_heads(regex)
        return found

    def _find_heads(self, regex: Regex) -> frozenset[CharSet]:
        match regex:
            case Chars(charset=charset):
                return frozenset((charset,))
            case Alt(members=members) | Both(members=members):
                return frozenset[CharSet]().union(*(self._heads_of(member) for member in members))
            case Repeat(body=body) | Negated(body=body):
                return self._heads_of(body)
            case Automaton(dfa=dfa, state=state):
                return frozenset(charset for charset, _ in dfa.transitions[state])
            case _:
                heads: frozenset[CharSet] = frozenset()
                while isinstance(regex, Seq):
                    heads |= self._heads_of(regex.first)
                    if not regex.first.nullable:
                        return heads
                    regex = regex.rest
                return heads if isinstance(regex, Epsilon) else heads | self._heads_of(regex)


@lru_cache(maxsize=1024)
def _partition(heads: frozenset[CharSet]) -> tuple[CharSet, ...]:
    """The coarsest classes of characters that no set divides; together all of Unicode."""
    classes = [CharSet().complement()]
    for charset in sorted(heads, key=_ranges):
        divided = [part for known in classes for part in (known & charset, known - charset)]
        classes = [part for part in divided if part]
    return tuple(classes)


def _ranges(charset: CharSet) -> tuple[tuple[int, int], ...]:
    return charset.ranges


def derivative(regex: Regex, symbol: int) -> Regex:
    """What follows `symbol`, a code point or byte, in the strings that begin with it."""
    return Derivatives(None).of(regex, symbol)


def matches(regex: Regex, text: str | bytes) -> bool:
    """Whether the whole text is in the language."""
    derivatives = Derivatives(None)
    for symbol in text if isinstance(text, bytes) else map(ord, text):
        regex = derivatives.of(regex, symbol)
        if regex is NOTHING:
            return False
    return regex.nullable
