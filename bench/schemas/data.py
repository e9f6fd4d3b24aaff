"""Schemas with instances: the JSON Schema Test Suite, and schemas met in the wild.

Both are files of one JSON object a line. The suite's have a `file`, which is the keyword under
test; the others have a `name`, and count for every keyword that occurs in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.schemas.values import Value, read, write

_HOLD_ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"}
    | {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
_HOLD_MANY = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_HOLD_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"}
    | {"properties"}
)
KEYWORDS = (
    (_HOLD_ONE | _HOLD_MANY | _HOLD_NAMED)
    | {"$anchor", "$dynamicRef", "$ref", "const", "dependentRequired", "enum", "format"}
    | {"exclusiveMaximum", "exclusiveMinimum", "maxContains", "maxItems", "maxLength"}
    | {"maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties"}
    | {"minimum", "multipleOf", "pattern", "required", "type", "uniqueItems"}
) - {"$defs", "definitions", "then", "else"}


@dataclass(frozen=True, slots=True)
class Instance:
    """One value and whether the schema accepts it, according to the file."""

    description: str
    text: str
    is_valid: bool


@dataclass(frozen=True, slots=True)
class Group:
    """One schema with its instances."""

    name: str
    keywords: tuple[str, ...]
    schema: str
    instances: tuple[Instance, ...]
    is_suite: bool


def read_groups(file: Path, only: str | None = None, limit: int | None = None) -> list[Group]:
    """A file's groups, but the optional ones: about a keyword, so many from all over it."""
    with file.open(encoding="utf-8") as lines:
        found = [group for line in lines if (group := _group(read(line))) is not None]
    groups = [group for group in found if only is None or only in group.keywords]
    if limit is None or limit >= len(groups):
        return groups
    return [groups[index * len(groups) // limit] for index in range(limit)]


def _group(entry: Value) -> Group | None:
    assert isinstance(entry, dict), entry
    schema, tests = entry["schema"], entry["tests"]
    assert isinstance(tests, list), entry
    instances = tuple(map(_instance, tests))
    if "file" not in entry:
        keywords = tuple(sorted(set(_keywords(schema))))
        return Group(str(entry["name"]), keywords, write(schema), instances, is_suite=False)
    file = str(entry["file"])
    if "/" in file:
        return None
    name = f"{file}: {entry['description']}"
    return Group(name, (file,), write(schema), instances, is_suite=True)


def _instance(test: Value) -> Instance:
    assert isinstance(test, dict), test
    return Instance(str(test.get("description", "")), write(test["data"]), test["valid"] is True)


def _keywords(schema: Value) -> Iterator[str]:
    """Keywords of the schema and of all schemas in it."""
    if not isinstance(schema, dict):
        return
    for keyword, argument in schema.items():
        if keyword in KEYWORDS:
            yield keyword
        if keyword in _HOLD_ONE:
            yield from _keywords(argument)
        if keyword in _HOLD_MANY and isinstance(argument, list):
            for child in argument:
                yield from _keywords(child)
        if keyword in _HOLD_NAMED and isinstance(argument, dict):
            for child in argument.values():
                yield from _keywords(child)
