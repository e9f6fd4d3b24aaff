"""Refuses JSON Schemas of which the engine would silently drop a part.

xgrammar takes the first keyword it knows how to follow and ignores what stands beside it.
This module knows which combinations it enforces, and names the keyword and its path where it
does not. Keywords that JSON Schema itself calls annotations, and unknown ones, pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..errors import InvalidRequest
from .regex_dialect import translate_regex
from .schema_document import (
    ROOT,
    Pointer,
    Schema,
    enumerated,
    follow,
    is_local_pointer,
    is_object,
    is_type,
    list_of,
    object_of,
    resolve,
    subschemas,
    types_of,
)

_STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"})
_OBJECT = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties", "unevaluatedProperties"}
)
_NEVER = ("not", "if", "contains", "minContains", "maxContains", "dependentRequired") + (
    ("dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
)
# Each of these makes the engine forget every other assertion beside it.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_ASSERTIONS = _STRING | _NUMBER | _ARRAY | _OBJECT | {"type"} | set(_ALONE)
_MAX_COMPARED = 256  # alternatives of a oneOf, each with each
_UNENFORCED_FORMATS = ("regex", "idn-email", "idn-hostname", "iri", "iri-reference")


def check_schema(root: object) -> None:
    """Raise `InvalidRequest` unless every assertion in the parsed schema can be enforced."""
    if not isinstance(root, bool) and not is_object(root):
        _refuse(ROOT, "a schema is an object or a boolean")
    found = list(subschemas(root))
    known = {id(schema) for _, schema in found}
    for path, schema in found:
        _check_keywords(schema, path)
        _check_alone(schema, path)
        _check_typed(schema, path)
        _check_string(schema, path)
        _check_number(schema, path)
        _check_values(schema, path)
        target = _referenced(schema, path, root)
        if is_object(target) and id(target) not in known:
            _refuse(path, f"the reference {schema['$ref']!r:.200} leads to no schema")
        _check_one_of(schema, path, root)


def _check_keywords(schema: Schema, path: Pointer) -> None:
    for keyword in _NEVER:
        if keyword in schema:
            _refuse(path, f"{keyword!r} can't be enforced")
    if schema.get("uniqueItems"):
        _refuse(path, "'uniqueItems' can't be enforced")
    if len(list_of(schema.get("allOf"))) > 1:
        _refuse(path, "'allOf' with more than one schema can't be enforced")
    declared = object_of(schema.get("properties"))
    for name in list_of(schema.get("required")):
        if isinstance(name, str) and name not in declared:
            _refuse(path, f"'required' names {name!r:.200}, which is not in 'properties'")


def _check_alone(schema: Schema, path: Pointer) -> None:
    for keyword in _ALONE:
        if keyword not in schema:
            continue
        allowed = {keyword, "type"} if keyword in ("const", "enum") else {keyword}
        for other in schema:
            if other in _ASSERTIONS and other not in allowed:
                _refuse(path, f"{other!r} beside {keyword!r} can't be enforced")


def _check_typed(schema: Schema, path: Pointer) -> None:
    """Without a type the engine infers one from the keywords of objects and arrays only."""
    if "type" in schema:
        return
    stated = _ASSERTIONS.intersection(schema).difference(_ALONE)
    as_object = "properties" in schema and stated <= _OBJECT
    as_array = ("items" in schema or "prefixItems" in schema) and stated <= _ARRAY
    if stated and not as_object and not as_array:
        _refuse(path, f"{min(stated)!r} without a 'type' can't be enforced")


def _check_string(schema: Schema, path: Pointer) -> None:
    rules = [key for key in ("format", "pattern") if key in schema]
    rules += [key for key in ("minLength", "maxLength") if key in schema][:1]
    if len(rules) > 1:
        _refuse(path, f"{rules[1]!r} beside {rules[0]!r} can't be enforced")
    if schema.get("format") in _UNENFORCED_FORMATS:
        _refuse(path, f"the format {schema['format']!r} can't be enforced")
    _check_pattern(schema.get("pattern"), path / "pattern")
    for pattern in object_of(schema.get("patternProperties")):
        _check_pattern(pattern, path / "patternProperties")


def _check_pattern(pattern: object, path: Pointer) -> None:
    if not isinstance(pattern, str):
        return
    try:
        translate_regex(pattern)
    except InvalidRequest as error:
        _refuse(path, str(error))


def _check_number(schema: Schema, path: Pointer) -> None:
    if "multipleOf" in schema and not (
        schema.get("type") == "integer" and isinstance(schema["multipleOf"], int)
    ):
        _refuse(path, "'multipleOf' can only be enforced as an integer of type 'integer'")


def _check_values(schema: Schema, path: Pointer) -> None:
    types = types_of(schema)
    values = enumerated(schema)
    if values is None or types is None:
        return
    for value in values:
        if not any(is_type(value, name) for name in types):
            _refuse(path, f"the value {json.dumps(value):.200} is not of the schema's type")


def _referenced(schema: Schema, path: Pointer, root: object) -> object | None:
    """What `$ref` names, None without one."""
    reference = schema.get("$ref")
    if reference is None:
        return None
    if not isinstance(reference, str) or not is_local_pointer(reference):
        _refuse(path, f"only local references ('#/…') are supported, not {reference!r:.200}")
    target = resolve(reference, root)
    if not isinstance(target, bool) and not is_object(target):
        _refuse(path, f"the reference {reference!r:.200} leads nowhere")
    return target


def _check_one_of(schema: Schema, path: Pointer, root: object) -> None:
    """The engine reads oneOf as anyOf: the same where no value can match two alternatives."""
    alternatives = [_alternative(item, root) for item in list_of(schema.get("oneOf"))]
    if _differ_all_in_values(alternatives):
        return
    if len(alternatives) > _MAX_COMPARED:
        _refuse(path, f"'oneOf' has more than {_MAX_COMPARED} alternatives; use 'anyOf'")
    for index, first in enumerate(alternatives):
        for second in alternatives[index + 1 :]:
            if not _are_disjoint(first, second):
                _refuse(
                    path,
                    "'oneOf' can only be enforced where its alternatives differ in type or in "
                    "a required property's 'const' or 'enum'; use 'anyOf'",
                )


@dataclass(frozen=True, slots=True)
class _Alternative:
    """What tells one alternative of a oneOf from others.

    values: what it lists, None if it does not; tags: the same of its required properties.
    """

    values: frozenset[str] | None
    types: frozenset[str] | None
    tags: Mapping[str, frozenset[str]]


def _alternative(item: object, root: object) -> _Alternative:
    schema = follow(item, root)
    fields = object_of(schema.get("properties"))
    tags: dict[str, frozenset[str]] = {}
    for name in list_of(schema.get("required")):
        if isinstance(name, str) and name in fields:
            values = _listed(follow(fields[name], root))
            if values is not None:
                tags[name] = values
    return _Alternative(_listed(schema), types_of(schema), tags)


def _differ_all_in_values(alternatives: Sequence[_Alternative]) -> bool:
    """All list their values, and no value stands in two lists."""
    lists = [a.values for a in alternatives if a.values is not None]
    together = frozenset[str]().union(*lists)
    return len(lists) == len(alternatives) and len(together) == sum(map(len, lists))


def _are_disjoint(first: _Alternative, second: _Alternative) -> bool:
    """True only where it is certain that no value is valid against both."""
    values, others = first.values, second.values
    if values is not None and others is not None and values.isdisjoint(others):
        return True
    if first.types is None or second.types is None:
        return False
    if not first.types & second.types:
        return not {"integer", "number"} <= first.types | second.types
    if first.types | second.types != frozenset({"object"}):
        return False
    return any(
        name in second.tags and tag.isdisjoint(second.tags[name])
        for name, tag in first.tags.items()
    )


def _listed(schema: Schema) -> frozenset[str] | None:
    """The values that the schema lists ('const', 'enum'), if it does: equal texts for equal
    values."""
    values = enumerated(schema)
    return None if values is None else frozenset(map(_canonical, values))


def _canonical(value: object) -> str:
    """1 and 1.0 are the same number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _refuse(path: Pointer, trouble: str) -> NoReturn:
    raise InvalidRequest(f"json_schema: at {path!s:.200}: {trouble}", param="json_schema")
