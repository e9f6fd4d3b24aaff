"""Languages of text as languages of its UTF-8 bytes: symbols 0 to 255."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

from .charset import CharSet, Range
from .construct import alt, chars, repeat, seq
from .nodes import Regex
from .rewriting import rewritten

_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
_ASCII = CharSet(((0, 0x7F),))


def utf8_bytes(regex: Regex) -> Regex:
    """The encoded texts of `regex`. Its algebra is the same, over bytes."""
    return rewritten(regex, _encoded, _all_bytes(), _ASCII)


@cache
def _all_bytes() -> Regex:
    return repeat(_encoded(CharSet().complement()))


@lru_cache(maxsize=1024)
def _encoded(charset: CharSet) -> Regex:
    return alt(
        *(
            seq(*(chars(CharSet((span,))) for span in spans))
            for first, last in charset.ranges
            for spans in _byte_spans(first, last)
        )
    )


def _byte_spans(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    """Ranges of bytes, one for each place, whose products make up the encoded range."""
    start = first
    for bound in _LAST_OF_LENGTH:
        if start <= min(last, bound):
            yield from _same_length(start, min(last, bound))
            start = bound + 1


def _same_length(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    """Split so that each piece has whole blocks of continuation bytes after one that varies."""
    for bits in (6, 12, 18):
        block = 1 << bits
        if first // block == last // block or first < 0x80:
            break
        if first % block:
            end = first // block * block + block - 1
            yield from _same_length(first, end)
            yield from _same_length(end + 1, last)
            return
        if last % block != block - 1:
            start = last // block * block
            yield from _same_length(first, start - 1)
            yield from _same_length(start, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))
