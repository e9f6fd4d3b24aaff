"""An instance with its keys in the order in which its schema declares them.

A grammar walks a declared order, and where several schemas speak of one object there is more
than one: a schema's own properties may come before or after those that it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from bench.schemas.values import Value

Schema = dict[str, Value]

_NESTED = ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")


def in_declared_order(instance: Value, schema: Value, *, own_first: bool) -> Value:
    return _Orderer(schema, own_first).ordered(instance, [schema])


class _Orderer:
    """Follows the schemas of each part of an instance; references only within the document."""

    def __init__(self, root: Value, own_first: bool) -> None:
        self._root = root
        self._own_first = own_first

    def ordered(self, value: Value, schemas: list[Value]) -> Value:
        """The value, which all of `schemas` are about."""
        found = list(self._all(schemas, frozenset()))
        match value:
            case list():
                return [
                    self.ordered(item, [s for each in found for s in _of_item(each, index)])
                    for index, item in enumerate(value)
                ]
            case dict():
                keys = dict.fromkeys(key for each in found for key in _declared(each))
                names = [key for key in keys if key in value]
                names += [key for key in value if key not in keys]
                return {
                    name: self.ordered(value[name], [s for e in found for s in _of_key(e, name)])
                    for name in names
                }
            case _:
                return value

    def _all(self, schemas: list[Value], seen: frozenset[int]) -> Iterator[Schema]:
        """The schemas and all that they apply to the same value."""
        for schema in schemas:
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            if self._own_first:
                yield schema
            for keyword in (key for key in schema if key in _NESTED):
                nested = self._nested(keyword, schema[keyword])
                yield from self._all(nested, seen | {id(schema)})
            if not self._own_first:
                yield schema

    def _nested(self, keyword: str, argument: Value) -> list[Value]:
        match argument:
            case str() if keyword == "$ref":
                return [self._resolved(argument)]
            case list():
                return argument
            case dict() if keyword == "dependentSchemas":
                return list(argument.values())
            case _:
                return [argument]

    def _resolved(self, reference: str) -> Value:
        """What a local pointer names; nothing for other references."""
        found = self._root
        if not reference.startswith("#"):
            return None
        for step in unquote(reference).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            match found:
                case dict():
                    found = found.get(key)
                case list() if key.isdecimal() and int(key) < len(found):
                    found = found[int(key)]
                case _:
                    return None
        return found


def _declared(schema: Schema) -> Iterator[str]:
    for keyword in ("properties", "required"):
        names = schema.get(keyword)
        if isinstance(names, dict | list):
            yield from (name for name in names if isinstance(name, str))


def _of_key(schema: Schema, key: str) -> Iterator[Value]:
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        yield properties[key]
        return
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict):
        yield from patterns.values()
    yield schema.get("additionalProperties")


def _of_item(schema: Schema, index: int) -> Iterator[Value]:
    for keyword in ("prefixItems", "items"):
        argument = schema.get(keyword)
        if not isinstance(argument, list):
            yield argument
        elif index < len(argument):
            yield argument[index]
    yield schema.get("additionalItems")
