"""JSON numbers within exact bounds, as regular languages of their spellings.

Spelling: no leading zeros, no minus before a zero, no plus. Integers have no fraction. Digits
are capped, so that no loop over digits runs forever and no number overflows a double: integer
parts have at most 19, or as many as a bound of up to 40, and more only where the bound nearest
to zero needs more; fractions have 17, or one more than a bound. Exponents, of at most three
digits, appear only where a number has neither bounds nor a divisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from math import ceil, floor
from typing import Final

from ..regular import NOTHING, Regex, TooLarge, alt, both, literal, seq, whole_language
from .digits import FractionBound, fraction, naturals
from .divisibility import decimal_multiples, integer_multiples

Exact = int | Decimal | Fraction

MAX_INTEGER_DIGITS: Final = 19
MAX_FRACTION_DIGITS: Final = 17
_MAX_BOUND_DIGITS: Final = 40  # of a bound away from zero that is followed to its last digit
_MAX_DOUBLE_DIGITS: Final = 308  # every integer part of so many digits is a finite double
_MAX_BOUND_FRACTION: Final = 100
_BEYOND: Final = 400  # magnitude, in powers of ten, at which bounds are all the same
_MINUS: Final = literal("-")


@dataclass(frozen=True, slots=True)
class _Bound:
    value: Fraction
    is_strict: bool

    def mirrored(self) -> _Bound:
        return _Bound(-self.value, self.is_strict)


def integers(
    minimum: Exact | None = None, maximum: Exact | None = None, multiple_of: Exact | None = None
) -> Regex:
    """Integers from `minimum` to `maximum`, both included.

    `TooLarge` if none has less than 309 digits, or the divisor needs too many states.
    """
    lo = None if minimum is None else ceil(_exact(minimum))
    hi = None if maximum is None else floor(_exact(maximum))
    result = alt(
        seq(_MINUS, _magnitudes(1 if hi is None else max(1, -hi), None if lo is None else -lo)),
        _magnitudes(0 if lo is None else max(0, lo), hi),
    )
    if multiple_of is not None:
        result = both(result, integer_multiples(abs(_exact(multiple_of))))
    return result


def decimals(
    minimum: Exact | None = None,
    exclusive_minimum: Exact | None = None,
    maximum: Exact | None = None,
    exclusive_maximum: Exact | None = None,
    multiple_of: Exact | None = None,
) -> Regex:
    """Numbers within the bounds; `TooLarge` as for `integers`, or if a bound has more than 100
    digits after its point."""
    lows = _bounds(minimum, exclusive_minimum)
    highs = _bounds(maximum, exclusive_maximum)
    if multiple_of is None and not lows and not highs:
        return _unbounded()
    low = max(lows, key=lambda bound: (bound.value, bound.is_strict), default=None)
    high = min(highs, key=lambda bound: (bound.value, not bound.is_strict), default=None)
    room = MAX_FRACTION_DIGITS
    for bound in (*lows, *highs):
        room = max(room, len(_digits_after_point(bound.value)) + 1)
    result = alt(
        seq(
            _MINUS,
            _unsigned(
                _highest(_Bound(Fraction(0), True), high and high.mirrored()),
                low and low.mirrored(),
                room,
            ),
        ),
        _unsigned(_highest(_Bound(Fraction(0), False), low), high, room),
    )
    if multiple_of is not None:
        result = both(result, decimal_multiples(abs(_exact(multiple_of))))
    return result


def _exact(value: Exact) -> Fraction:
    """The value; bounds beyond any double are all 10**400, so that none is written out."""
    if isinstance(value, Decimal):
        assert value.is_finite(), value
        exponent = value.as_tuple().exponent
        if value and value.adjusted() >= _BEYOND:
            return Fraction(10**_BEYOND if value > 0 else -(10**_BEYOND))
        if isinstance(exponent, int) and exponent < -_BEYOND:
            raise TooLarge(f"a number of more than {_BEYOND} digits after the point")
    return max(min(Fraction(value), Fraction(10**_BEYOND)), Fraction(-(10**_BEYOND)))


def _bounds(inclusive: Exact | None, exclusive: Exact | None) -> list[_Bound]:
    given = ((inclusive, False), (exclusive, True))
    return [_Bound(_exact(value), strict) for value, strict in given if value is not None]


def _highest(bound: _Bound, other: _Bound | None) -> _Bound:
    if other is None:
        return bound
    return max(bound, other, key=lambda found: (found.value, found.is_strict))


def _top(lowest: int, highest: int | None) -> int:
    """The greatest integer part that is spelled, where none is below `lowest`."""
    num_digits = max(MAX_INTEGER_DIGITS, len(str(lowest)))
    if highest is not None and len(str(highest)) <= _MAX_BOUND_DIGITS:
        num_digits = max(num_digits, len(str(highest)))
    if num_digits > _MAX_DOUBLE_DIGITS:
        raise TooLarge(f"numbers of more than {_MAX_DOUBLE_DIGITS} digits")
    top: int = 10**num_digits - 1
    return top if highest is None else min(top, highest)


def _magnitudes(lo: int, hi: int | None) -> Regex:
    """Natural numbers from `lo` on, to `hi` where there is one."""
    if hi is not None and hi < lo:
        return NOTHING
    return naturals(lo, _top(lo, hi))


def _unsigned(low: _Bound, high: _Bound | None, room: int) -> Regex:
    """Numbers without sign, of at most `room` digits after the point; `low` is not negative."""
    if high is not None and (
        high.value < low.value or (high.value == low.value and (low.is_strict or high.is_strict))
    ):
        return NOTHING
    first = floor(low.value)
    last = _top(first, None if high is None else floor(high.value))
    if high is not None and floor(high.value) > last:
        high = None
    lowest = _fraction_bound(low)
    if high is None:
        return alt(
            seq(naturals(first, first), fraction(lowest, None, room)),
            seq(naturals(first + 1, last), fraction(None, None, room)),
        )
    highest = _fraction_bound(high)
    if first == last:
        return seq(naturals(first, first), fraction(lowest, highest, room))
    return alt(
        seq(naturals(first, first), fraction(lowest, None, room)),
        seq(naturals(first + 1, last - 1), fraction(None, None, room)),
        seq(naturals(last, last), fraction(None, highest, room)),
    )


def _fraction_bound(bound: _Bound) -> FractionBound:
    return FractionBound(_digits_after_point(bound.value), bound.is_strict)


def _digits_after_point(value: Fraction) -> str:
    """The decimal fraction of a number, or of its magnitude, without zeros at its end."""
    rest = abs(value) % 1
    digits: list[str] = []
    while rest:
        if len(digits) == _MAX_BOUND_FRACTION:
            raise TooLarge(f"a bound of more than {_MAX_BOUND_FRACTION} digits after the point")
        rest *= 10
        digits.append(str(floor(rest)))
        rest %= 1
    return "".join(digits)


@cache
def _unbounded() -> Regex:
    """Any number; the exponent is short of what could overflow a mantissa of 19 digits."""
    positive = seq(naturals(1, 10**MAX_INTEGER_DIGITS - 1), fraction(None, None, 17))
    zero, below_one = literal("0"), fraction(FractionBound("", True), None, 17)
    small = whole_language(r"(?:[eE][+-]?(?:[0-9]{1,2}|[01][0-9]{2}|2[0-8][0-9]))?")
    large = whole_language(r"[1-9](?:\.[0-9]{1,17})?[eE][+-]?(?:29[0-9]|30[0-7])")
    not_zero = alt(seq(positive, small), seq(zero, below_one, small), large)
    return alt(seq(_MINUS, not_zero), not_zero, seq(zero, fraction(None, None, 17), small))
