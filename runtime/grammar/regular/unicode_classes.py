"""The named character classes of ECMA-262 patterns.

`\\p` knows the general categories of Python's Unicode database. Scripts are not in it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Final

from .charset import MAX_CODE_POINT, CharSet

DIGITS: Final = CharSet.of("09")
WORD: Final = CharSet.of("09", "AZ", "_", "az")
SPACES: Final = CharSet.of(
    "\t\r", " ", "\u00a0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000"
) | CharSet.of("\ufeff")
LINE_ENDS: Final = CharSet.from_chars("\n\r\u2028\u2029")

SHORTHANDS: Final[Mapping[str, CharSet]] = {
    "d": DIGITS,
    "D": DIGITS.complement(),
    "w": WORD,
    "W": WORD.complement(),
    "s": SPACES,
    "S": SPACES.complement(),
}

_LONG_NAMES: Final = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_PREFIXES: Final = ("gc=", "General_Category=")


def property_class(name: str) -> CharSet | None:
    """What `\\p{name}` matches; None if the name is not known here."""
    if name == "Any":
        return CharSet().complement()
    if name == "ASCII":
        return CharSet(((0, 0x7F),))
    if name == "Assigned":
        return _categories()["Cn"].complement()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = _LONG_NAMES.get(name, name)
    groups = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    ranges = [
        found
        for category, charset in _categories().items()
        if any(category == group or category[0] == group for group in groups)
        for found in charset.ranges
    ]
    return CharSet(ranges) if ranges else None


@cache
def _categories() -> Mapping[str, CharSet]:
    """Every general category; found once, when the first pattern asks for one (0.3 s)."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for category, first, last in _runs():
        ranges.setdefault(category, []).append((first, last))
    return {category: CharSet(found) for category, found in ranges.items() if category != "Cs"}


def _runs() -> Iterator[tuple[str, int, int]]:
    start = 0
    categories = map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1)))
    for category, run in groupby(categories):
        length = sum(1 for _ in run)
        yield category, start, start + length - 1
        start += length
