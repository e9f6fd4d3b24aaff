"""Number languages against exact arithmetic on the spelled numbers."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import Regex, TooLarge, is_empty, matches, shortest
from espalier.runtime.grammar.schema.numbers import decimals, integers

INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,29})")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,17})?")
SMALL_SPELLINGS = ["".join(letters) for n in range(1, 5) for letters in product("-.0159", repeat=n)]
bounds = st.none() | st.integers(-120, 120) | st.decimals(-120, 120, places=2)
far_bounds = st.integers(-(10**20), 10**20) | st.decimals(
    Decimal(-(10**9)), Decimal(10**9), places=9
)
divisors = st.none() | st.sampled_from(
    [1, 2, 3, 4, 5, 7, 10, 12, 100, Decimal("0.01"), Decimal("0.5"), Decimal("2.5")]
    + [Decimal("0.25"), Decimal("1e-8"), Decimal("0.3"), Decimal("1.0"), Decimal("1E+1")]
)
spellings = st.one_of(
    st.integers(-130, 130).map(str),
    st.decimals(-130, 130, places=2).map("{:f}".format),
    st.sampled_from(SMALL_SPELLINGS),
    st.decimals(Decimal(-(10**9)), Decimal(10**9), places=9).map("{:f}".format),
    st.integers(-(10**20), 10**20).map(str),
)

Number = int | Decimal


def is_negative_zero(text: str) -> bool:
    return text.startswith("-") and not text.strip("-0.")


def is_multiple(value: Fraction, divisor: Number | None) -> bool:
    return divisor is None or (value / Fraction(divisor)).denominator == 1


def _most_digits(minimum: Number | None, maximum: Number | None, is_negative: bool) -> int:
    """Digits of the bounds on the same side of zero."""
    sides = [b for b in (minimum, maximum) if b is not None and (b < 0) == is_negative]
    return max((len(str(abs(int(bound)))) for bound in sides), default=0)


def near(bound: Number) -> list[str]:
    """Spellings at the bound and beside it."""
    value = Decimal(bound)
    steps = [Decimal(0), Decimal(1), Decimal("0.001"), Decimal("1e-9")]
    values = [value + sign * step for step in steps for sign in (1, -1)]
    return [f"{found:f}" for found in values] + [str(math.floor(value)), str(math.ceil(value))]


@settings(deadline=None)
@given(bounds | far_bounds, bounds | far_bounds, divisors, st.lists(spellings, max_size=20))
def test_integers(
    minimum: Number | None, maximum: Number | None, divisor: Number | None, texts: list[str]
) -> None:
    language = integers(minimum, maximum, divisor)
    for text in texts + [
        near_text for b in (minimum, maximum) if b is not None for near_text in near(b)
    ]:
        value = Fraction(text) if INTEGER.fullmatch(text) else None
        assert matches(language, text) == (
            value is not None
            and abs(value) < 10 ** max(19, _most_digits(minimum, maximum, value < 0))
            and not is_negative_zero(text)
            and (minimum is None or value >= Fraction(minimum))
            and (maximum is None or value <= Fraction(maximum))
            and is_multiple(value, divisor)
        ), text


@settings(deadline=None)
@given(bounds, bounds, bounds, bounds, divisors, st.lists(spellings, max_size=20))
def test_decimals(
    minimum: Number | None,
    above: Number | None,
    maximum: Number | None,
    below: Number | None,
    divisor: Number | None,
    texts: list[str],
) -> None:
    given_bounds = [bound for bound in (minimum, above, maximum, below) if bound is not None]
    assume(given_bounds or divisor is not None)
    language = decimals(minimum, above, maximum, below, divisor)
    for text in texts + [near_text for bound in given_bounds for near_text in near(bound)]:
        value = Fraction(text) if DECIMAL.fullmatch(text) else None
        assert matches(language, text) == (
            value is not None
            and not is_negative_zero(text)
            and (minimum is None or value >= Fraction(minimum))
            and (above is None or value > Fraction(above))
            and (maximum is None or value <= Fraction(maximum))
            and (below is None or value < Fraction(below))
            and is_multiple(value, divisor)
        ), text


@settings(deadline=None)
@given(far_bounds, far_bounds, st.booleans())
def test_far_bounds_hold_exactly(low: Number, high: Number, is_strict: bool) -> None:
    language = decimals(*((None, low, None, high) if is_strict else (low, None, high, None)))
    for text in near(low) + near(high):
        value = Fraction(text)
        inside = low < value < high if is_strict else low <= value <= high
        caps = re.fullmatch(r"-?[0-9]{1,21}(?:\.[0-9]{1,17})?", text)
        assert matches(language, text) == (bool(caps) and inside and not is_negative_zero(text))


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_of_pythons_spelling(number: float) -> None:
    text = json.dumps(number)
    magnitude = abs(number)
    assume(text != "-0.0" and (magnitude == 0 or 1e-289 < magnitude < 1e289))
    assert matches(decimals(), text)


@settings(deadline=None)
@given(st.from_regex(r"\A-?[0-9]{1,20}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,4})?\Z"))
def test_any_number_is_json_and_finite(text: str) -> None:
    if matches(decimals(), text):
        assert math.isfinite(json.loads(text))
        assert not is_negative_zero(text.lower().partition("e")[0])


def test_bounds_that_need_more_digits() -> None:
    unsigned = integers(0, 18446744073709551615)
    assert matches(unsigned, "18446744073709551615")
    assert not matches(unsigned, "18446744073709551616")
    assert matches(integers(10**25), "1" + "0" * 25)
    assert not matches(integers(0), "1" + "0" * 19)
    tiny = decimals(exclusive_minimum=Decimal("1e-30"), exclusive_maximum=Decimal("2e-30"))
    assert shortest(tiny) == "0." + "0" * 29 + "11"


def test_bounds_beyond_doubles() -> None:
    assert matches(integers(maximum=Decimal("1.7976931348623157e308")), "12")
    assert matches(
        decimals(minimum=Decimal("-1e999999999"), maximum=Decimal("1e999999999")), "-1.5"
    )
    with pytest.raises(TooLarge):
        integers(minimum=10**309)
    with pytest.raises(TooLarge):
        decimals(minimum=Decimal("1e-999999999"))


@pytest.mark.parametrize(
    "language",
    [
        integers(5, 4),
        integers(Decimal("0.1"), Decimal("0.9")),
        integers(1, 6, 7),
        decimals(minimum=2, maximum=1),
        decimals(exclusive_minimum=1, maximum=1),
        decimals(minimum=Decimal("0.1"), maximum=Decimal("0.4"), multiple_of=Decimal("0.5")),
    ],
)
def test_nothing_is_left(language: Regex) -> None:
    assert is_empty(language)


def test_divisors() -> None:
    assert matches(decimals(multiple_of=Decimal("0.01")), "12.3400")
    assert not matches(decimals(multiple_of=Decimal("0.01")), "12.345")
    assert matches(decimals(multiple_of=Decimal("1e-8")), "0.00000001")
    assert matches(integers(multiple_of=10**6), "-7000000")
    assert matches(integers(multiple_of=Decimal("2.5")), "5")
    assert not matches(integers(multiple_of=Decimal("2.5")), "2")
    with pytest.raises(TooLarge):
        decimals(multiple_of=Decimal("0.123456789"))
    with pytest.raises(TooLarge):
        integers(multiple_of=10**9 + 7)


def test_bounded_numbers_are_plain() -> None:
    for language in (integers(), integers(-3, 10**9), decimals(), decimals(minimum=0, maximum=1)):
        assert language.is_plain
