"""From a Python type to the constraint on an output and the reader of its text.

type                                       constraint              value
int, float, bool (dtype)                   a regex below           that type
str (dtype)                                none                    the text
a JSON schema as dict or JSON text         the schema              the JSON text
a pydantic model, dataclass, TypedDict,    its JSON schema         an object of the type,
Literal, ... : what TypeAdapter takes                              validated by pydantic
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from espalier.runtime.messages import Constraint, JsonSchema, Regex
from espalier.runtime.programs.values import Parse

from .typed_dicts import for_pydantic

# Bounded, so that an unlucky model can't write digits until max_tokens.
_INT = r"-?(0|[1-9][0-9]{0,17})"
_FLOAT = _INT + r"(\.[0-9]{1,9})?"
_BOOL = r"True|False"


class Reading(NamedTuple):
    """What an output must look like, and how its text becomes a value (None: it is one)."""

    constraint: Constraint | None
    parse: Parse | None


class _ReadableSchema(GenerateJsonSchema):
    """Schemas that allow only what validation then takes."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """pydantic's own allows any string as well."""
        return self.float_schema(
            core_schema.float_schema(
                multiple_of=_as_float(schema.get("multiple_of")),
                le=_as_float(schema.get("le")),
                ge=_as_float(schema.get("ge")),
                lt=_as_float(schema.get("lt")),
                gt=_as_float(schema.get("gt")),
            )
        )


def dtype_reading(dtype: object) -> Reading:
    """The reading of `dtype`: `int`, `float`, `bool` (written True or False) or `str`."""
    match dtype:
        case _ if dtype is int:
            return Reading(Regex(_INT), int)
        case _ if dtype is float:
            return Reading(Regex(_FLOAT), float)
        case _ if dtype is bool:
            return Reading(Regex(_BOOL), _parse_bool)
        case _ if dtype is str:
            return Reading(None, None)
        case _:
            raise TypeError(f"dtype must be int, float, bool or str, not {dtype!r}")


def json_reading(schema: object) -> Reading:
    """The reading of a JSON schema (dict or JSON text) or of a type that pydantic knows."""
    if isinstance(schema, str | Mapping):
        text = json_object_text("json_schema", cast(object, schema))
        return Reading(JsonSchema(text), None)
    if isinstance(schema, TypeAdapter):
        return _adapter_reading(schema)  # pyright: ignore[reportUnknownArgumentType]
    return _type_reading(schema) if _is_hashable(schema) else _new_type_reading(schema)


def json_object_text(argument: str, value: object) -> str:
    """The JSON text of a mapping, or `value` itself where it is such a text."""
    if isinstance(value, str):
        return _checked(argument, value)
    if isinstance(value, Mapping):
        return _dumped(argument, cast(Mapping[str, Any], value))
    raise TypeError(f"{argument} must be a mapping or a JSON text, not {value!r}")


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _as_float(bound: Decimal | None) -> float | None:
    return None if bound is None else float(bound)


def _parse_bool(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"{text!r} is neither True nor False")
    return text == "True"


def _checked(argument: str, text: str) -> str:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{argument} is not JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise TypeError(f"{argument} must be a JSON object, not {text!r}")
    return text


def _dumped(argument: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{argument} is not a JSON value: {error}") from error


def _new_type_reading(type_: Any) -> Reading:
    try:
        return _adapter_reading(TypeAdapter(for_pydantic(type_)))
    except Exception as error:
        raise TypeError(f"json_schema: no JSON schema can be made of {type_!r}: {error}") from error


_type_reading = lru_cache(maxsize=256)(_new_type_reading)


def _adapter_reading(adapter: TypeAdapter[Any]) -> Reading:
    def parse(text: str) -> object:
        return adapter.validate_json(text)

    return Reading(
        JsonSchema(_dumped("json_schema", adapter.json_schema(schema_generator=_ReadableSchema))),
        parse,
    )
