"""JSON's spelling of strings: the text between the quotes.

Spelled languages have one spelling of each character: itself; `\\"`, `\\\\`, `\\b`, `\\f`, `\\n`,
`\\r`, `\\t`; and `\\u00` with two lower-case digits for the other control characters. So the
spelling of an intersection is the intersection of the spellings.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

from .charset import CharSet
from .construct import alt, char, chars, literal, repeat, seq
from .nodes import Regex
from .rewriting import rewritten

_ESCAPES: Final = {
    '"': '"',
    "\\": "\\",
    "\b": "b",
    "\f": "f",
    "\n": "n",
    "\r": "r",
    "\t": "t",
}
_RAW: Final = CharSet(((0, 0x1F),)).complement() - CharSet.from_chars('"\\')
_ESCAPED: Final = CharSet.from_chars("".join(_ESCAPES))
_NUMBERED: Final = CharSet(((0, 0x1F),)) - _ESCAPED
_HEX_DIGITS: Final = "0123456789abcdef"


def json_spelled(regex: Regex) -> Regex:
    """The contents of JSON strings whose value is in `regex`."""
    return rewritten(regex, _spelled_chars, all_content(), _RAW)


@cache
def all_content() -> Regex:
    """The spelling of every text."""
    return repeat(_spelled_chars(CharSet().complement()))


@lru_cache(maxsize=1024)
def _spelled_chars(charset: CharSet) -> Regex:
    options = [chars(charset & _RAW)]
    escaped = charset & _ESCAPED
    if escaped:
        letters = CharSet.from_chars("".join(_ESCAPES[chr(code)] for code in escaped))
        options.append(seq(char(ord("\\")), chars(letters)))
    for high in range(2):
        row = CharSet(((high * 16, high * 16 + 15),)) & charset & _NUMBERED
        if row:
            digits = CharSet.from_chars("".join(_HEX_DIGITS[code % 16] for code in row))
            options.append(seq(literal(f"\\u00{high}"), chars(digits)))
    return alt(*options)


def _free_content() -> Regex:
    hexadecimal = chars(CharSet.of("09", "AF", "af"))
    no_surrogate = alt(
        seq(chars(CharSet.of("09", "AC", "ac", "E", "F", "e", "f")), repeat(hexadecimal, 3, 3)),
        seq(chars(CharSet.of("D", "d")), chars(CharSet.of("07")), repeat(hexadecimal, 2, 2)),
    )
    half_of = seq(literal("\\u"), chars(CharSet.of("D", "d")))
    high = seq(half_of, chars(CharSet.of("89", "AB", "ab")), repeat(hexadecimal, 2, 2))
    low = seq(half_of, chars(CharSet.of("CF", "cf")), repeat(hexadecimal, 2, 2))
    return repeat(
        alt(
            chars(_RAW),
            seq(char(ord("\\")), chars(CharSet.from_chars('"\\/bfnrt'))),
            seq(literal("\\u"), no_surrogate),
            seq(high, low),
        )
    )


FREE_CONTENT: Final = _free_content()  # any content, with every valid escape
