"""Sets of characters against predicates on code points."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import CharSet

SURROGATES = range(0xD800, 0xE000)
CODES = st.sampled_from([0, 1, 5, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xE001, 0x10FFFE, 0x10FFFF])
RANGES = st.lists(st.tuples(CODES, CODES).map(lambda pair: (min(pair), max(pair))), max_size=4)
PROBES = [0, 1, 2, 4, 5, 6, 0xD7FE, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xE001, 0xFFFF, 0x10FFFF]


def has(ranges: list[tuple[int, int]], code: int) -> bool:
    return code not in SURROGATES and any(lo <= code <= hi for lo, hi in ranges)


@settings(deadline=None)
@given(RANGES, RANGES)
def test_operations_are_those_of_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    a, b = CharSet(left), CharSet(right)
    for code in PROBES:
        in_a, in_b = has(left, code), has(right, code)
        assert (code in a) == in_a
        assert (code in a | b) == (in_a or in_b)
        assert (code in a & b) == (in_a and in_b)
        assert (code in a - b) == (in_a and not in_b)
        assert (code in a.complement()) == (not in_a and code not in SURROGATES)
    assert bool(a) == (a.size > 0)


@settings(deadline=None)
@given(RANGES)
def test_one_form_for_each_set(ranges: list[tuple[int, int]]) -> None:
    charset = CharSet(ranges)
    for (_, last), (first, _) in zip(charset.ranges, charset.ranges[1:], strict=False):
        assert first > last + 1
    assert CharSet(reversed(charset.ranges)) == charset
    assert hash(CharSet(charset.ranges)) == hash(charset)
    assert charset.complement().complement() == charset


def test_size_counts_characters() -> None:
    assert CharSet().complement().size == 0x110000 - 0x800
    assert CharSet.of("az", "_").size == 27
    assert list(CharSet.from_chars("cab")) == [97, 98, 99]
