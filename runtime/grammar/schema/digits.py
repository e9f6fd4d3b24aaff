"""Digits of numbers between bounds, as regular languages; knows no signs and no caps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..regular import EPSILON, NOTHING, CharSet, Regex, alt, chars, literal, nonempty, repeat, seq

_DIGIT: Final = chars(CharSet.of("09"))
_POINT: Final = literal(".")


@dataclass(frozen=True, slots=True)
class FractionBound:
    """A bound of what follows the point: 0.<digits>, without zeros at the end."""

    digits: str
    is_strict: bool

    @property
    def first(self) -> int:
        return int(self.digits[:1] or "0")

    @property
    def rest(self) -> FractionBound:
        return FractionBound(self.digits[1:], self.is_strict)


def naturals(lo: int, hi: int) -> Regex:
    """Natural numbers from `lo` to `hi`, without leading zeros."""
    if hi < lo:
        return NOTHING
    low, high = str(lo), str(hi)
    if len(low) == len(high):
        return _same_length(low, high)
    between = range(len(low) + 1, len(high))
    leading = chars(CharSet.of("19"))
    return alt(
        _same_length(low, "9" * len(low)),
        seq(leading, repeat(_DIGIT, len(low), len(high) - 2)) if between else NOTHING,
        _same_length("1" + "0" * (len(high) - 1), high),
    )


def _same_length(low: str, high: str) -> Regex:
    """Strings of digits from `low` to `high`, of one length."""
    shared = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), None)
    if shared is None:
        return literal(low)
    first, last = int(low[shared]), int(high[shared])
    lows, highs = low[shared + 1 :], high[shared + 1 :]
    room = len(lows)
    if lows.strip("0"):
        lowest = seq(literal(low[shared]), _at_least(lows))
        first += 1
    else:
        lowest = NOTHING
    if highs.strip("9"):
        highest = seq(literal(high[shared]), _at_most(highs))
        last -= 1
    else:
        highest = NOTHING
    between = seq(_digits(first, last), repeat(_DIGIT, room, room))
    return seq(literal(low[:shared]), alt(lowest, between, highest))


def _at_least(low: str) -> Regex:
    result = EPSILON
    for room, digit in enumerate(reversed(low)):
        above = seq(_digits(int(digit) + 1, 9), repeat(_DIGIT, room, room))
        result = alt(above, seq(literal(digit), result))
    return result


def _at_most(high: str) -> Regex:
    result = EPSILON
    for room, digit in enumerate(reversed(high)):
        below = seq(_digits(0, int(digit) - 1), repeat(_DIGIT, room, room))
        result = alt(below, seq(literal(digit), result))
    return result


def _digits(first: int, last: int) -> Regex:
    return chars(CharSet.of(f"{first}{last}")) if first <= last else NOTHING


def fraction(low: FractionBound | None, high: FractionBound | None, room: int) -> Regex:
    """A point and digits, or nothing where that is a number within the bounds, too."""
    digits = _fraction_digits(low, high, room)
    return alt(EPSILON if digits.nullable else NOTHING, seq(_POINT, nonempty(digits)))


def _fraction_digits(low: FractionBound | None, high: FractionBound | None, room: int) -> Regex:
    """Up to `room` digits such that 0.<digits> is within the bounds."""
    if low is not None and not low.digits and not low.is_strict:
        low = None
    if low is None and high is None:
        return repeat(_DIGIT, 0, room)
    if high is not None and not high.digits and high.is_strict:
        return NOTHING
    options = [EPSILON] if low is None else []
    if room:
        first = 0 if low is None else low.first
        last = 9 if high is None else high.first
        for digit in {first, last}:
            if first <= digit <= last:
                lower = low.rest if low is not None and digit == first else None
                upper = high.rest if high is not None and digit == last else None
                rest = _fraction_digits(lower, upper, room - 1)
                options.append(seq(_digits(digit, digit), rest))
        options.append(seq(_digits(first + 1, last - 1), repeat(_DIGIT, 0, room - 1)))
    return alt(*options)
