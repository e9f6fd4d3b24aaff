"""JSON text read exactly: no number is rounded, nothing is forgiven."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import NoReturn, TypeAlias, cast

from .outcome import Uncheckable, Violation

Json: TypeAlias = "None | bool | str | Decimal | list[Json] | dict[str, Json]"
Object: TypeAlias = "dict[str, Json]"


def read_json(text: str) -> Json:
    """The value, all numbers as `Decimal`.

    `Violation` if it is not JSON (RFC 8259), an object has a key twice, or a string has a lone
    surrogate. `Uncheckable` if it is nested deeper, or has larger exponents, than can be read.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_float=_number_of,
            parse_int=_number_of,
            parse_constant=_refuse_constant,
        )
        # Lone surrogates, of escapes or as they are, survive parsing but not this.
        json.dumps(value, ensure_ascii=False, default=_no_text).encode()
    except UnicodeEncodeError:
        raise Violation("a string has a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise Violation(f"not JSON: {error}") from None
    except RecursionError:
        raise Uncheckable("the text is nested too deep") from None
    return cast(Json, value)


def _object_of(pairs: list[tuple[str, Json]]) -> Object:
    found: Object = {}
    for key, value in pairs:
        if key in found:
            raise Violation(f"the key {key!r:.100} stands twice in one object")
        found[key] = value
    return found


def _number_of(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Uncheckable(f"the number {text:.40} is too large to be compared") from None


def _refuse_constant(name: str) -> NoReturn:
    raise Violation(f"not JSON: {name} is not a number")


def _no_text(_: object) -> None:
    """Numbers have no surrogates."""
