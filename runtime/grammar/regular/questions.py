"""Questions about languages: is one empty, what is its shortest string, does one hold another.

Answers are put together from those about the parts where possible; only intersections and
complements are searched state by state, within a budget (see `Derivatives`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from .charset import CharSet
from .construct import NOTHING, both, negated
from .derivatives import DEFAULT_BUDGET, Derivatives, matches
from .dfa import Dfa, has_cycle, trimmed
from .errors import TooLarge
from .nodes import Alt, Automaton, Both, Chars, Epsilon, Regex, Repeat, Seq, parts

_MAX_STRING = 1 << 20  # characters of a string that is given as an answer
# What a reader likes to see first in an example.
_PLAIN = "a0 bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ123456789_-.,:/@"


def is_empty(regex: Regex, budget: int = DEFAULT_BUDGET) -> bool:
    """Whether there is no string in it; `TooLarge` beyond the budget."""
    return _is_empty(regex, Derivatives(budget))


def _is_empty(regex: Regex, derivatives: Derivatives) -> bool:
    if regex.is_plain or regex.nullable:
        return regex is NOTHING
    match regex:
        case Seq():
            return any(_is_empty(part, derivatives) for part in parts(regex))
        case Alt(members=members):
            return all(_is_empty(member, derivatives) for member in members)
        case Repeat(body=body):
            return _is_empty(body, derivatives)
        case Automaton():
            return False
        case _:
            return not _has_string(regex, derivatives)


def _has_string(regex: Regex, derivatives: Derivatives) -> bool:
    """Depth first: where there are strings, a long one is mostly found sooner than a shortest."""
    seen = {regex}
    todo = [regex]
    while todo:
        state = todo.pop()
        if state.nullable:
            return True
        fresh = [target for _, target in derivatives.steps(state) if target not in seen]
        seen.update(fresh)
        todo += fresh
    return False


def shortest(regex: Regex, budget: int = DEFAULT_BUDGET) -> str | None:
    """Of the shortest strings of the language the first one in an order of characters in which
    plain ones come first: so what is left of it after a prefix is the same of what the prefix
    leaves. None if the language is empty; `TooLarge` beyond the budget, or if the string has over
    2**20 characters.
    """
    return _shortest(regex, Derivatives(budget))


def _shortest(regex: Regex, derivatives: Derivatives) -> str | None:
    if regex.nullable:
        return ""
    match regex:
        case Chars(charset=charset):
            return chr(_preferred(charset)) if charset else None
        case Seq():
            return _joined(_shortest(part, derivatives) for part in parts(regex))
        case Alt(members=members):
            options = [_shortest(member, derivatives) for member in members]
            return min((o for o in options if o is not None), key=_by_rank, default=None)
        case Repeat(body=body, lo=lo):
            once = _shortest(body, derivatives)
            if once is not None:
                _check_length(len(once) * lo)
            return None if once is None else once * lo
        case _:
            return _search(regex, derivatives)


def _joined(strings: Iterable[str | None]) -> str | None:
    found: list[str] = []
    length = 0
    for string in strings:
        if string is None:
            return None
        length += len(string)
        _check_length(length)
        found.append(string)
    return "".join(found)


def _search(regex: Regex, derivatives: Derivatives) -> str | None:
    """Breadth first, so that the first end found is a shortest string."""
    came_from: dict[Regex, tuple[Regex, int] | None] = {regex: None}
    frontier = [regex]
    for state in frontier:
        if state.nullable:
            return _path(came_from, state)
        options = [(_preferred(symbols), target) for symbols, target in derivatives.steps(state)]
        for symbol, target in sorted(options, key=lambda option: _rank(option[0])):
            if target not in came_from:
                came_from[target] = (state, symbol)
                frontier.append(target)
    return None


def _path(came_from: dict[Regex, tuple[Regex, int] | None], end: Regex) -> str:
    symbols: list[int] = []
    step = came_from[end]
    while step is not None:
        state, symbol = step
        symbols.append(symbol)
        step = came_from[state]
    return "".join(map(chr, reversed(symbols)))


@lru_cache(maxsize=1024)
def _preferred(charset: CharSet) -> int:
    """The one of the least rank."""
    for char in _PLAIN:
        if ord(char) in charset:
            return ord(char)
    visible = (max(first, ord("!")) for first, last in charset.ranges if last > ord(" "))
    return next(visible, charset.ranges[0][0])


def _rank(symbol: int) -> tuple[int, bool, int]:
    place = _PLAIN.find(chr(symbol))
    return place if place >= 0 else len(_PLAIN), symbol <= ord(" "), symbol


def _by_rank(string: str) -> tuple[int, list[tuple[int, bool, int]]]:
    return len(string), [_rank(ord(char)) for char in string]


def _by_length(string: str) -> tuple[int, str]:
    return len(string), string


def _check_length(length: int) -> None:
    if length > _MAX_STRING:
        raise TooLarge(f"a string of {length} characters")


def are_disjoint(left: Regex, right: Regex, budget: int = DEFAULT_BUDGET) -> bool:
    """Whether no string is in both."""
    return is_empty(both(left, right), budget)


def includes(big: Regex, small: Regex, budget: int = DEFAULT_BUDGET) -> bool:
    """Whether every string of `small` is in `big`."""
    return is_empty(both(small, negated(big)), budget)


def to_dfa(regex: Regex, budget: int = DEFAULT_BUDGET) -> Dfa:
    """An automaton of the language, not always the smallest (see `minimized`)."""
    derivatives = Derivatives(budget)
    number = {regex: 0}
    states = [regex]
    transitions: list[dict[int, CharSet]] = []
    for state in states:
        targets: dict[int, CharSet] = {}
        for symbols, target in derivatives.steps(state):
            if target not in number:
                number[target] = len(states)
                states.append(target)
            targets[number[target]] = symbols
        transitions.append(targets)
    return trimmed(transitions, (n for n, state in enumerate(states) if state.nullable))


def finite_strings(
    regex: Regex, limit: int, budget: int = DEFAULT_BUDGET
) -> tuple[str, ...] | None:
    """All strings, shortest first; None if there are more than `limit`, or endlessly many."""
    found = _strings(regex, limit, budget)
    return None if found is None else tuple(sorted(found, key=_by_length))


def _strings(regex: Regex, limit: int, budget: int) -> set[str] | None:
    match regex:
        case Epsilon():
            return {""}
        case Chars(charset=charset):
            return {chr(code) for code in charset} if charset.size <= limit else None
        case Seq():
            found: set[str] | None = {""}
            for part in parts(regex):
                found = _products(found, _strings(part, limit, budget), limit)
            return found
        case Alt(members=members):
            return _union((_strings(member, limit, budget) for member in members), limit)
        case Repeat(body=body, lo=lo, hi=hi):
            return _powers(_strings(body, limit, budget), lo, hi, limit)
        case Both(members=members):
            return _common_strings(members, regex, limit, budget)
        case _:
            return _enumerated(to_dfa(regex, budget), limit)


def _common_strings(
    members: tuple[Regex, ...], regex: Regex, limit: int, budget: int
) -> set[str] | None:
    """Few strings of one member, of which the others keep what they match."""
    for member in members:
        if member.is_plain:
            found = _strings(member, limit, budget)
            if found is not None:
                return {text for text in found if matches(regex, text)}
    return _enumerated(to_dfa(regex, budget), limit)


def _products(left: set[str] | None, right: set[str] | None, limit: int) -> set[str] | None:
    if left == set() or right == set():
        return set()
    if left is None or right is None:
        return None
    products: set[str] = set()
    for head in left:
        for tail in right:
            _check_length(len(head) + len(tail))
            products.add(head + tail)
            if len(products) > limit:
                return None
    return products


def _union(sets: Iterable[set[str] | None], limit: int) -> set[str] | None:
    union: set[str] = set()
    for strings in sets:
        if strings is None:
            return None
        union |= strings
    return union if len(union) <= limit else None


def _powers(once: set[str] | None, lo: int, hi: int | None, limit: int) -> set[str] | None:
    if once is not None and once <= {""}:
        return {""} if once or lo == 0 else set()
    if once is None or hi is None:
        return None
    if len(once) == 1:
        (text,) = once
        _check_length(len(text) * hi)
        return {text * count for count in range(lo, hi + 1)} if hi - lo < limit else None
    # Two strings or more: each round adds at least one, so the limit ends the loop.
    power: set[str] | None = {""}
    for _ in range(lo):
        power = _products(power, once, limit)
    union = set(power or ())
    for _ in range(lo, hi):
        power = _products(power, once, limit)
        if power is None or len(union | power) > limit:
            return None
        union |= power
    return union if power is not None else None


def _enumerated(dfa: Dfa, limit: int) -> set[str] | None:
    if has_cycle(dfa):
        return None
    strings: set[str] = set()
    frontier = [(0, "")]
    while frontier:
        state, text = frontier.pop()
        if state in dfa.accepting:
            strings.add(text)
        for charset, target in dfa.transitions[state]:
            # What is on the frontier leads to at least one more string each.
            if len(strings) + len(frontier) + charset.size > limit:
                return None
            frontier.extend((target, text + chr(code)) for code in charset)
        if len(strings) > limit:
            return None
    return strings
