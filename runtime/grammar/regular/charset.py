"""Sets of characters as sorted ranges of code points; knows nothing of regular expressions.

Surrogates are no characters: they are in no set, and so in the complement of none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import final

Range = tuple[int, int]  # first and last code point

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@final
class CharSet:
    """An immutable set. `ranges` are sorted, disjoint and never adjacent."""

    __slots__ = ("_hash", "ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges = tuple(_without_surrogates(_merged(sorted(ranges))))
        self._hash = hash(self.ranges)

    @classmethod
    def of(cls, *spans: str) -> CharSet:
        """Each span is one character, or the first and the last of a range: `of("az", "_")`."""
        return cls((ord(span[0]), ord(span[-1])) for span in spans)

    @classmethod
    def from_chars(cls, text: str) -> CharSet:
        """The characters that occur in the text."""
        return cls((ord(char), ord(char)) for char in set(text))

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        index = bisect_right(self.ranges, (code, MAX_CODE_POINT + 1))
        return index > 0 and code <= self.ranges[index - 1][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"CharSet({self.ranges!r})"

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet(self.ranges + other.ranges)

    def __and__(self, other: CharSet) -> CharSet:
        return CharSet(_common(self.ranges, other.ranges))

    def __sub__(self, other: CharSet) -> CharSet:
        return CharSet(_common(self.ranges, tuple(_gaps(other.ranges))))

    def complement(self) -> CharSet:
        """All other characters of Unicode."""
        return CharSet(_gaps(self.ranges))


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Sorted ranges with those that overlap or touch joined into one."""
    current: Range | None = None
    for first, last in ranges:
        assert 0 <= first <= last <= MAX_CODE_POINT, (first, last)
        if current is None:
            current = (first, last)
        elif first <= current[1] + 1:
            current = (current[0], max(current[1], last))
        else:
            yield current
            current = (first, last)
    if current is not None:
        yield current


def _without_surrogates(ranges: Iterable[Range]) -> Iterator[Range]:
    for first, last in ranges:
        if last < _SURROGATES[0] or first > _SURROGATES[1]:
            yield first, last
            continue
        if first < _SURROGATES[0]:
            yield first, _SURROGATES[0] - 1
        if last > _SURROGATES[1]:
            yield _SURROGATES[1] + 1, last


def _gaps(ranges: Iterable[Range]) -> Iterator[Range]:
    """What lies between sorted ranges, surrogates too."""
    start = 0
    for first, last in ranges:
        if start < first:
            yield start, first - 1
        start = last + 1
    if start <= MAX_CODE_POINT:
        yield start, MAX_CODE_POINT


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    i = j = 0
    while i < len(left) and j < len(right):
        first = max(left[i][0], right[j][0])
        last = min(left[i][1], right[j][1])
        if first <= last:
            yield first, last
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
