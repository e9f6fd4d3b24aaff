"""Keywords that look at one value alone: each is `(argument, value, schema) -> holds`.

An argument of the wrong shape raises `Uncheckable`; values of types that a keyword does not
speak of pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

from .formats import FORMATS
from .outcome import Misshapen
from .patterns import found_in
from .reading import Json, Object
from .values import (
    count_of,
    identity,
    is_multiple,
    is_type,
    list_of,
    names_of,
    number_of,
    object_of,
    text_of,
)

Assertion = Callable[[Json, Json, Object], bool]


def _type(argument: Json, value: Json, _: Object) -> bool:
    names = [argument] if isinstance(argument, str) else names_of(argument)
    return any(is_type(value, name) for name in names)


def _const(argument: Json, value: Json, _: Object) -> bool:
    return identity(argument) == identity(value)


def _enum(argument: Json, value: Json, _: Object) -> bool:
    wanted = identity(value)
    return any(identity(listed) == wanted for listed in list_of(argument))


def _minimum(argument: Json, value: Json, schema: Object) -> bool:
    limit = number_of(argument)
    is_strict = schema.get("exclusiveMinimum") is True
    return not isinstance(value, Decimal) or value > limit or (value == limit and not is_strict)


def _maximum(argument: Json, value: Json, schema: Object) -> bool:
    limit = number_of(argument)
    is_strict = schema.get("exclusiveMaximum") is True
    return not isinstance(value, Decimal) or value < limit or (value == limit and not is_strict)


def _exclusive_minimum(argument: Json, value: Json, _: Object) -> bool:
    if isinstance(argument, bool):  # of draft 4: it makes `minimum` strict
        return True
    limit = number_of(argument)
    return not isinstance(value, Decimal) or value > limit


def _exclusive_maximum(argument: Json, value: Json, _: Object) -> bool:
    if isinstance(argument, bool):
        return True
    limit = number_of(argument)
    return not isinstance(value, Decimal) or value < limit


def _multiple_of(argument: Json, value: Json, _: Object) -> bool:
    step = number_of(argument)
    if step <= 0:
        raise Misshapen("it must be greater than 0")
    return not isinstance(value, Decimal) or is_multiple(value, step)


def _min_length(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, str) or len(value) >= limit


def _max_length(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, str) or len(value) <= limit


def _pattern(argument: Json, value: Json, _: Object) -> bool:
    pattern = text_of(argument)
    return not isinstance(value, str) or found_in(pattern, value)


def _format(argument: Json, value: Json, _: Object) -> bool:
    holds = FORMATS.get(text_of(argument))
    return holds is None or not isinstance(value, str) or holds(value)


def _min_items(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, list) or len(value) >= limit


def _max_items(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, list) or len(value) <= limit


def _unique_items(argument: Json, value: Json, _: Object) -> bool:
    if not isinstance(argument, bool):
        raise Misshapen("it must be a boolean")
    if not argument or not isinstance(value, list):
        return True
    return len(set(map(identity, value))) == len(value)


def _min_properties(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, dict) or len(value) >= limit


def _max_properties(argument: Json, value: Json, _: Object) -> bool:
    limit = count_of(argument)
    return not isinstance(value, dict) or len(value) <= limit


def _required(argument: Json, value: Json, _: Object) -> bool:
    names = names_of(argument)
    return not isinstance(value, dict) or all(name in value for name in names)


def _dependent_required(argument: Json, value: Json, _: Object) -> bool:
    needs = {name: names_of(needed) for name, needed in object_of(argument).items()}
    return not isinstance(value, dict) or all(
        other in value for name, needed in needs.items() if name in value for other in needed
    )


ASSERTIONS: Mapping[str, Assertion] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "required": _required,
    "dependentRequired": _dependent_required,
}
