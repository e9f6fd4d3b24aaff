"""JSON values that keep the spelling of their numbers, and the ways to write a value down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import TypeAlias, cast

_RAW = json.JSONEncoder(ensure_ascii=False).encode
_ESCAPED = json.JSONEncoder().encode
_MAX_DIGITS = 400
"""A number that would be longer without its exponent is left as it is."""


class Number(str):
    """A number as it was spelled."""

    __slots__ = ()


Value: TypeAlias = "None | bool | Number | str | list[Value] | dict[str, Value]"


@dataclass(frozen=True, slots=True)
class Style:
    """How a value is written: `", "` and `": "`, `\\u` beyond ASCII, 1.0 and 1e2 as 1 and 100."""

    is_spaced: bool = False
    is_ascii: bool = False
    is_plain: bool = False


AS_GIVEN = Style()


def styles_of(value: Value) -> list[Style]:
    """Those in which the value is written differently."""
    given = write(value)
    escapes = (False,) if given.isascii() else (False, True)
    plains = (False,) if write(value, Style(is_plain=True)) == given else (False, True)
    spaces = (False, True)
    return [Style(*each) for each in product(spaces, escapes, plains)]


def read(text: str) -> Value:
    return cast(Value, json.loads(text, parse_int=Number, parse_float=Number))


def write(value: Value, style: Style = AS_GIVEN) -> str:
    match value:
        case Number():
            return plain(value) if style.is_plain else str(value)
        case list():
            items = (write(item, style) for item in value)
            return f"[{(', ' if style.is_spaced else ',').join(items)}]"
        case dict():
            colon = ": " if style.is_spaced else ":"
            members = (
                f"{_quoted(key, style)}{colon}{write(child, style)}" for key, child in value.items()
            )
            return f"{{{(', ' if style.is_spaced else ',').join(members)}}}"
        case str():
            return _quoted(value, style)
        case _:
            return json.dumps(value)


def plain(number: Number) -> str:
    """The shortest spelling without exponent: 1.0 is 1, 1e2 is 100, -0 is 0."""
    exact = Decimal(number)
    if exact == 0:
        return "0"
    if abs(exact.adjusted()) > _MAX_DIGITS:
        return str(number)
    digits = f"{exact:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _quoted(text: str, style: Style) -> str:
    return _ESCAPED(text) if style.is_ascii else _RAW(text)
