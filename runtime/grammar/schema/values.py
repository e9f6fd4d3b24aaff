"""JSON values as a schema compares them: 1 and 1.0 are one number, true is none.

Numbers are `int` and `Decimal`, as `read_json` gives them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NoReturn

from .document import is_list, is_object
from .trouble import ROOT, Malformed

MAX_DIGITS = 400
"""Of a number written out without an exponent; what a double can hold takes 309 and 324."""


def read_json(text: str) -> object:
    """Raises `Malformed`: not JSON, a key twice in one object, a number of too many digits, a
    lone surrogate."""
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_constant=_refuse_constant,
            parse_float=_decimal,
            parse_int=_integer,
        )
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise Malformed(ROOT, "a string has a lone surrogate") from None
    except ValueError as error:
        raise Malformed(ROOT, f"not valid JSON: {error}") from None
    return value


def _object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Malformed(ROOT, f"the key {twice!r:.200} stands twice in one object")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(ROOT, f"{name} is not a JSON number")


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or len(value.as_tuple().digits) + abs(exponent) > MAX_DIGITS:
        raise Malformed(ROOT, f"a number has more than {MAX_DIGITS} digits: {text:.40}")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Malformed(ROOT, f"a number has more than {MAX_DIGITS} digits: {text:.40}")
    return int(text)


def is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def fraction(value: object) -> Fraction:
    assert isinstance(value, int | Decimal), value
    return Fraction(value)


def type_of(value: object) -> str:
    """One of the names in `facts.TYPES`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | Decimal():
            return "integer" if Fraction(value).denominator == 1 else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def frozen(value: object) -> Hashable:
    """Equal for equal values, and for no others."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, int | Decimal):
        return ("number", Fraction(value))
    if is_list(value):
        return ("array", tuple(map(frozen, value)))
    if is_object(value):
        return ("object", frozenset((name, frozen(member)) for name, member in value.items()))
    return ("string", value)


def spelled(value: object) -> str:
    """The one compact spelling that grammars give a value: `\\"`, `\\\\` and control
    characters are escaped, all else is raw."""
    if is_list(value):
        return "[" + ",".join(map(spelled, value)) + "]"
    if is_object(value):
        return "{" + ",".join(f"{spelled(k)}:{spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Decimal):
        return _spelled_number(value)
    return json.dumps(value, ensure_ascii=False)


def _spelled_number(value: Decimal) -> str:
    if value == value.to_integral_value():
        return str(int(value))
    text = format(value, "f")
    return text.rstrip("0")


def as_schema(value: object) -> Mapping[str, object]:
    """A schema that an object or array, and only one equal to it, is valid against; each
    member by 'const'."""
    if is_list(value):
        return {
            "type": "array",
            "minItems": len(value),
            "prefixItems": [{"const": item} for item in value],
            "items": False,
        }
    assert is_object(value), value
    return {
        "type": "object",
        "required": list(value),
        "properties": {name: {"const": member} for name, member in value.items()},
        "additionalProperties": False,
    }
