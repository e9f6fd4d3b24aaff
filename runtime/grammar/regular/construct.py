"""Smart constructors: the only makers of terms, which keep them in one normal form.

Associative, commutative and idempotent laws are applied where derivatives need them to be
finitely many, and the simplifications that keep terms small in practice.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from .charset import CharSet
from .dfa import Dfa
from .nodes import (
    Alt,
    Automaton,
    Both,
    Chars,
    Epsilon,
    Negated,
    Regex,
    Repeat,
    Seq,
    interned,
    parts,
)


def chars(charset: CharSet) -> Regex:
    """One character of the set; `NOTHING` if it is empty."""
    return interned((Chars, charset), lambda: Chars(False, True, hash((1, hash(charset))), charset))


EPSILON: Final = interned(Epsilon, lambda: Epsilon(True, True, hash((2,))))
NOTHING: Final = chars(CharSet())
ANY_CHAR: Final = chars(CharSet().complement())


@lru_cache(maxsize=4096)
def char(code: int) -> Regex:
    """This character alone."""
    return chars(CharSet(((code, code),)))


def literal(text: str) -> Regex:
    """This text alone; `NOTHING` if it has a lone surrogate, which no text has."""
    return seq(*(char(ord(symbol)) for symbol in text))


def seq(*pieces: Regex) -> Regex:
    """One after the other."""
    result = EPSILON
    for piece in reversed(pieces):
        if not isinstance(piece, Seq):
            result = chain(piece, result)
            continue
        for link in reversed(tuple(parts(piece))):
            result = chain(link, result)
    return result


def chain(first: Regex, rest: Regex) -> Regex:
    """`first` then `rest`, in constant time: a `Seq` that is `first` stays as it is."""
    if first is NOTHING or rest is NOTHING:
        return NOTHING
    if first is EPSILON:
        return rest
    if rest is EPSILON:
        return first
    head, tail = (rest.first, rest.rest) if isinstance(rest, Seq) else (rest, EPSILON)
    joined = _joined(first, head)
    if joined is not None:
        return chain(joined, tail)
    return interned(
        (Seq, first, rest),
        lambda: Seq(
            first.nullable and rest.nullable,
            first.is_plain and rest.is_plain,
            hash((3, first.digest, rest.digest)),
            first,
            rest,
        ),
    )


def _joined(left: Regex, right: Regex) -> Regex | None:
    """x{a,b}x{c,d} as x{a+c,b+d}; a lone x counts as x{1,1} beside a repetition."""
    if not isinstance(left, Repeat) and not isinstance(right, Repeat):
        return None
    body, lo, hi = _counted(left)
    other, other_lo, other_hi = _counted(right)
    if isinstance(left, Repeat) and right is body:
        other, other_lo, other_hi = right, 1, 1
    elif isinstance(right, Repeat) and left is other:
        body, lo, hi = left, 1, 1
    if body is not other:
        return None
    return repeat(body, lo + other_lo, None if hi is None or other_hi is None else hi + other_hi)


def _counted(regex: Regex) -> tuple[Regex, int, int | None]:
    return (regex.body, regex.lo, regex.hi) if isinstance(regex, Repeat) else (regex, 1, 1)


def repeat(body: Regex, lo: int = 0, hi: int | None = None) -> Regex:
    """`lo` to `hi` times the body; without end if `hi` is None."""
    assert lo >= 0 and (hi is None or lo <= hi), (lo, hi)
    if hi == 0 or body is EPSILON:
        return EPSILON
    if body is NOTHING:
        return NOTHING if lo else EPSILON
    if body.nullable:
        lo = 0
    if hi == 1 and (lo == 1 or body.nullable):
        return body
    if isinstance(body, Repeat) and _has_no_gap(body, lo, hi):
        top = None if body.hi is None or hi is None else body.hi * hi
        return repeat(body.body, body.lo * lo, top)
    return interned(
        (Repeat, body, lo, hi),
        lambda: Repeat(
            lo == 0 or body.nullable,
            body.is_plain,
            hash((4, body.digest, lo, -1 if hi is None else hi)),
            body,
            lo,
            hi,
        ),
    )


def _has_no_gap(inner: Repeat, lo: int, hi: int | None) -> bool:
    """Whether (x{a,b}){lo,hi} is x{a*lo,b*hi}: k and k+1 rounds leave no count between them."""
    if lo == hi:
        return True
    if inner.hi is None:
        return lo > 0 or inner.lo <= 1
    return (lo + 1) * inner.lo <= lo * inner.hi + 1


def alt(*options: Regex) -> Regex:
    """Any of the options."""
    charset = CharSet()
    members: dict[Regex, None] = {}
    has_empty = False
    for option in _options(options):
        if option is EPSILON:
            has_empty = True
        elif isinstance(option, Chars):
            charset = charset | option.charset if charset else option.charset
        else:
            members[option] = None
    if TEXT in members or any(isinstance(m, Negated) and m.body in members for m in members):
        return TEXT
    if charset:
        members[chars(charset)] = None
    if not members:
        return EPSILON if has_empty else NOTHING
    result = _alternation(members)
    return repeat(result, 0, 1) if has_empty and not result.nullable else result


def _options(options: Iterable[Regex]) -> Iterable[Regex]:
    """The options with nested choices opened: x? is a choice of x and nothing."""
    for option in options:
        if isinstance(option, Alt):
            yield from option.members
        elif isinstance(option, Repeat) and option.lo == 0 and option.hi == 1:
            yield EPSILON
            yield from _options((option.body,))
        else:
            yield option


def _alternation(members: Iterable[Regex]) -> Regex:
    ordered = tuple(sorted(members, key=_digest))
    if len(ordered) == 1:
        return ordered[0]
    return interned(
        (Alt, ordered),
        lambda: Alt(
            any(member.nullable for member in ordered),
            all(member.is_plain for member in ordered),
            hash((5, *(member.digest for member in ordered))),
            ordered,
        ),
    )


def both(*conditions: Regex) -> Regex:
    """What all of the conditions have; any text if there are none."""
    charset: CharSet | None = None
    members: dict[Regex, None] = {}
    for condition in conditions:
        for member in condition.members if isinstance(condition, Both) else (condition,):
            if isinstance(member, Chars):
                charset = member.charset if charset is None else charset & member.charset
            elif member is not TEXT:
                members[member] = None
    if charset is not None:
        members[chars(charset)] = None
    if NOTHING in members:
        return NOTHING
    if EPSILON in members:
        return EPSILON if all(member.nullable for member in members) else NOTHING
    if any(isinstance(member, Negated) and member.body in members for member in members):
        return NOTHING
    return _conjunction(members)


def _conjunction(members: Iterable[Regex]) -> Regex:
    ordered = tuple(sorted(members, key=_digest))
    if len(ordered) < 2:
        return ordered[0] if ordered else TEXT
    return interned(
        (Both, ordered),
        lambda: Both(
            all(member.nullable for member in ordered),
            False,
            hash((6, *(member.digest for member in ordered))),
            ordered,
        ),
    )


def negated(body: Regex) -> Regex:
    """Every text that the body does not have."""
    if body is NOTHING:
        return TEXT
    if body is TEXT:
        return NOTHING
    if isinstance(body, Negated):
        return body.body
    return interned(
        (Negated, body), lambda: Negated(not body.nullable, False, hash((7, body.digest)), body)
    )


def automaton(dfa: Dfa, state: int = 0) -> Regex:
    """What the automaton accepts from the state on."""
    if state not in dfa.accepting and not dfa.transitions[state]:
        return NOTHING
    return interned(
        (Automaton, dfa, state),
        lambda: Automaton(
            state in dfa.accepting,
            False,
            hash((8, state, len(dfa.transitions))),
            dfa,
            state,
        ),
    )


def nonempty(regex: Regex) -> Regex:
    """The same without the empty string."""
    if not regex.nullable:
        return regex
    match regex:
        case Epsilon():
            return NOTHING
        case Alt(members=members):
            return alt(*(nonempty(member) for member in members))
        case Repeat(body=body, hi=hi) if not body.nullable:
            return repeat(body, 1, hi)
        case _:
            return both(regex, SOME_TEXT)


def _digest(regex: Regex) -> int:
    return regex.digest


TEXT: Final = repeat(ANY_CHAR)
SOME_TEXT: Final = repeat(ANY_CHAR, 1)
