"""Reading a parsed JSON Schema: its subschemas, references, types and values.

Never raises on a malformed schema: what is not there or of the wrong shape reads as empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard
from urllib.parse import unquote

Schema = Mapping[str, object]

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "propertyNames") + (
    ("unevaluatedItems", "unevaluatedProperties")
)
_INDEX = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a schema stands. Written out only to be read: names may be long, schemas many."""

    parent: Pointer | None = None
    token: str = "#"

    def __truediv__(self, token: str) -> Pointer:
        return Pointer(self, token)

    def __str__(self) -> str:
        if self.parent is None:
            return self.token
        token = self.token.replace("~", "~0").replace("/", "~1")
        return f"{self.parent}/{token}"


ROOT = Pointer()


def subschemas(schema: object, path: Pointer = ROOT) -> Iterator[tuple[Pointer, Schema]]:
    """Every schema object in `schema`, which stands at `path`, and where it stands."""
    if not is_object(schema):
        return
    yield path, schema
    for key in _SCHEMA_MAPS:
        for name, child in object_of(schema.get(key)).items():
            yield from subschemas(child, path / key / name)
    for key in _SCHEMA_LISTS:
        for index, child in enumerate(list_of(schema.get(key))):
            yield from subschemas(child, path / key / str(index))
    for key in _SCHEMAS:
        yield from subschemas(schema.get(key), path / key)


def enumerated(schema: Schema) -> Sequence[object] | None:
    """The values that the schema lists, or None if it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    return list_of(schema["enum"]) if "enum" in schema else None


def types_of(schema: Schema) -> frozenset[str] | None:
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    names = list_of(stated)
    return frozenset(name for name in names if isinstance(name, str)) if names else None


def is_type(value: object, name: str) -> bool:
    match value:
        case None:
            return name == "null"
        case bool():
            return name == "boolean"
        case int():
            return name in ("integer", "number")
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
        case str():
            return name == "string"
        case list():
            return name == "array"
        case _:
            return name == "object"


def is_local_pointer(reference: str) -> bool:
    return reference == "#" or reference.startswith("#/")


def resolve(reference: str, root: object) -> object | None:
    """The schema at a local JSON pointer, None where there is none."""
    found = root
    for token in reference.split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        if _is_list(found):
            index = int(key) if _INDEX.fullmatch(key) else len(found)
            found = found[index] if index < len(found) else None
        else:
            found = object_of(found).get(key)
    return found


def follow(schema: object, root: object) -> Schema:
    """The schema itself, or what its reference names, one step; {} for true or false."""
    reference = object_of(schema).get("$ref")
    if isinstance(reference, str) and is_local_pointer(reference):
        return object_of(resolve(reference, root))
    return object_of(schema)


def is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def object_of(value: object) -> Schema:
    return value if is_object(value) else {}


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def list_of(value: object) -> Sequence[object]:
    return value if _is_list(value) else []
