"""Multiples of a number, as regular languages over their decimal spelling.

A remainder is all that long division has to remember. Leading zeros, signs of zero and the
number of digits are left to the language that this one is intersected with (`numbers`).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from ..regular import (
    CharSet,
    Regex,
    TooLarge,
    alt,
    automaton,
    expression_of,
    literal,
    minimized,
    seq,
    whole_language,
)
from ..regular.dfa import trimmed

_MAX_STATES = 1024  # of an automaton before it is minimised
_MAX_PLAIN_STATES = 16  # of the smallest automaton, if it is to become a plain expression,
_MAX_TERMS = 1000  # and of that expression
_START, _NEGATIVE, _FIRST = 0, 1, 2  # states; from _FIRST on they are remainders


@lru_cache(maxsize=256)
def integer_multiples(divisor: Fraction) -> Regex:
    """Integers that `divisor`, which is positive, divides; `TooLarge` beyond 1,024 states."""
    assert divisor > 0, divisor
    return _integers(divisor.numerator)


@lru_cache(maxsize=256)
def decimal_multiples(divisor: Fraction) -> Regex:
    """Integers and decimal fractions that `divisor` divides."""
    assert divisor > 0, divisor
    scale = _scale(divisor)
    if scale == 0:
        return seq(_integers(divisor.numerator), whole_language(r"(?:\.0+)?"))
    return _divisible(int(divisor * 10**scale), scale)


def _integers(divisor: int) -> Regex:
    """Powers of ten are only zeros at the end: they need no remainders."""
    zeros = 0
    while divisor % 10 == 0:
        divisor //= 10
        zeros += 1
    multiples = _divisible(divisor, 0)
    return alt(literal("0"), seq(multiples, literal("0" * zeros))) if zeros else multiples


def _scale(divisor: Fraction) -> int:
    """The digits after the point of the divisor."""
    scale = 0
    while (divisor * 10**scale).denominator != 1:
        scale += 1
        if scale > _MAX_STATES:
            raise TooLarge("a divisor with too many digits after the point")
    return scale


def _divisible(divisor: int, scale: int) -> Regex:
    """Spelled numbers of which 10**scale times the value is a multiple of `divisor`."""
    if divisor * (scale + 1) > _MAX_STATES:
        raise TooLarge(f"a divisor that needs more than {_MAX_STATES} states")
    dfa = minimized(trimmed(*_long_division(divisor, scale)))
    if len(dfa.transitions) > _MAX_PLAIN_STATES:
        return automaton(dfa)
    try:
        return expression_of(dfa, _MAX_TERMS)
    except TooLarge:
        return automaton(dfa)


def _long_division(divisor: int, scale: int) -> tuple[list[dict[int, CharSet]], list[int]]:
    """Transitions and accepting states. Remainder r with k digits after the point read is
    state `_FIRST + (k + 1) * divisor + r`; before the point, `_FIRST + r`."""

    def state(place: int, remainder: int) -> int:
        return _FIRST + (place + 1) * divisor + remainder

    def digits(place: int, remainder: int) -> dict[int, CharSet]:
        targets: dict[int, CharSet] = {}
        for digit in range(10):
            target = state(place, (10 * remainder + digit) % divisor)
            targets[target] = targets.get(target, CharSet()) | CharSet.of(str(digit))
        return targets

    transitions = [digits(-1, 0) | {_NEGATIVE: CharSet.of("-")}, digits(-1, 0)]
    accepting: list[int] = []
    for place in range(-1, scale + 1 if scale else 0):
        for remainder in range(divisor):
            num_missing = scale - max(place, 0)
            if remainder * 10**num_missing % divisor == 0:
                accepting.append(state(place, remainder))
            if place == scale > 0:
                transitions.append({state(place, remainder): CharSet.of("0")})
            elif place == -1:
                point = {state(0, remainder): CharSet.of(".")} if scale else {}
                transitions.append(digits(-1, remainder) | point)
            else:
                transitions.append(digits(place + 1, remainder))
    return transitions, accepting
