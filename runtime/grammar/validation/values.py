"""JSON values compared as JSON Schema compares them, and schema arguments of the right shape."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal

from .outcome import Misshapen
from .reading import Json, Object


def identity(value: Json) -> Hashable:
    """Equal for equal values, and only for those: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(identity, value))
        case dict():
            return frozenset((key, identity(child)) for key, child in value.items())
        case _:
            return value


def is_integer(value: Json) -> bool:
    """Whether it is a number without fraction, however it is written."""
    return isinstance(value, Decimal) and value == value.to_integral_value()


def is_type(value: Json, name: str) -> bool:
    match value:
        case None:
            return name == "null"
        case bool():
            return name == "boolean"
        case str():
            return name == "string"
        case Decimal():
            return name == "number" or (name == "integer" and is_integer(value))
        case list():
            return name == "array"
        case dict():
            return name == "object"


def is_multiple(value: Decimal, step: Decimal) -> bool:
    """Exact for numbers of any size, without ever writing out the zeros of an exponent."""
    _, digits, exponent = value.as_tuple()
    _, step_digits, step_exponent = step.as_tuple()
    assert isinstance(exponent, int) and isinstance(step_exponent, int), (value, step)
    whole, whole_step = int(Decimal((0, digits, 0))), int(Decimal((0, step_digits, 0)))
    shift = exponent - step_exponent
    if whole == 0:
        return True
    if shift >= 0:
        zeros: int = pow(10, shift, whole_step)
        return whole * zeros % whole_step == 0
    if -shift > len(digits):  # it would have to end with more zeros than it has digits
        return False
    scale: int = 10**-shift
    return whole % (whole_step * scale) == 0


def number_of(argument: Json) -> Decimal:
    if not isinstance(argument, Decimal):
        raise Misshapen("it must be a number")
    return argument


def count_of(argument: Json) -> Decimal:
    if not isinstance(argument, Decimal) or argument < 0 or not is_integer(argument):
        raise Misshapen("it must be a count")
    return argument


def text_of(argument: Json) -> str:
    if not isinstance(argument, str):
        raise Misshapen("it must be a string")
    return argument


def list_of(argument: Json) -> list[Json]:
    if not isinstance(argument, list):
        raise Misshapen("it must be an array")
    return argument


def names_of(argument: Json) -> list[str]:
    return [text_of(name) for name in list_of(argument)]


def object_of(argument: Json) -> Object:
    if not isinstance(argument, dict):
        raise Misshapen("it must be an object")
    return argument


def short(value: Json) -> str:
    """Enough of a value to recognise it in a message."""
    match value:
        case None | bool():
            return str(value).lower().replace("none", "null")
        case Decimal():
            return f"{value!s:.40}"
        case str():
            return f"{value!r:.60}"
        case list():
            shown = ", ".join(map(short, value[:4]))
            return f"[{shown}{', …' if len(value) > 4 else ''}]"
        case dict():
            return "{…}" if value else "{}"
