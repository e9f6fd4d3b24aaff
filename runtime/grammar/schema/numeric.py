"""The texts of the numbers that facts allow."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from math import ceil, floor, gcd, lcm

from ..regular import TEXT, Regex, alt, both, literal, negated, repeat, seq
from .facts import NUMBERS, Facts, Numbers
from .numbers import decimals, integers
from .values import fraction

_DIGITS = repeat(alt(*(literal(str(digit)) for digit in range(10))), 1)
_SIGN = repeat(literal("-"), 0, 1)
_NO_FRACTION = repeat(seq(literal("."), repeat(literal("0"), 1)), 0, 1)
_WITH_EXPONENT = seq(TEXT, alt(literal("e"), literal("E")), TEXT)
_WHOLE = seq(_SIGN, _DIGITS, _NO_FRACTION)


def number_language(facts: Facts) -> Regex:
    """Of the numbers among what `facts` allows; empty where there are none."""
    numbers = facts.numbers
    if facts.types >= NUMBERS:
        found = _decimals(numbers)
    elif "integer" in facts.types:
        found = _integers(numbers)
    else:
        found = both(_decimals(numbers), negated(alt(_WHOLE, _WITH_EXPONENT)))
    for step in numbers.not_multiples:
        multiples = _decimals(Numbers(multiples=frozenset({step})))
        found = both(found, negated(alt(multiples, _WITH_EXPONENT)))
    excluded = [fraction(value.value) for value in facts.excluded if value.type in NUMBERS]
    if excluded:
        spellings = alt(*map(_spellings, excluded))
        found = both(found, negated(alt(spellings, _WITH_EXPONENT)))
    return found


def _integers(numbers: Numbers) -> Regex:
    lower, upper = numbers.lower, numbers.upper
    lowest = highest = None
    if lower is not None:
        lowest = floor(lower) + 1 if numbers.lower_open else ceil(lower)
    if upper is not None:
        highest = ceil(upper) - 1 if numbers.upper_open else floor(upper)
    step = reduce(lcm, (part.numerator for part in numbers.multiples), 1)
    return integers(lowest, highest, step if step > 1 else None)


def _decimals(numbers: Numbers) -> Regex:
    steps = tuple(numbers.multiples)
    return decimals(
        minimum=None if numbers.lower_open else numbers.lower,
        exclusive_minimum=numbers.lower if numbers.lower_open else None,
        maximum=None if numbers.upper_open else numbers.upper,
        exclusive_maximum=numbers.upper if numbers.upper_open else None,
        multiple_of=reduce(_common_multiple, steps) if steps else None,
    )


def _common_multiple(first: Fraction, second: Fraction) -> Fraction:
    """The least number that is a whole multiple of both."""
    above = lcm(first.numerator, second.numerator)
    return Fraction(above, gcd(first.denominator, second.denominator))


def _spellings(value: Fraction) -> Regex:
    """All decimals without an exponent that are equal to `value`."""
    sign = _SIGN if value == 0 else literal("-" if value < 0 else "")
    whole, rest = divmod(abs(value), 1)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    zeros = repeat(literal("0"))
    if not digits:
        return seq(sign, literal(str(whole)), _NO_FRACTION)
    return seq(sign, literal(f"{whole}.{digits}"), zeros)
