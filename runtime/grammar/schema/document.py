"""One JSON Schema document: its subschemas, each with a number, and what references name.

Nothing is ever fetched. Knows where schemas may stand, not what their keywords mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeGuard
from urllib.parse import unquote, urldefrag, urljoin

from .trouble import ROOT, Malformed, Pointer, Unenforceable

Schema = Mapping[str, object]

TRUE, FALSE = 0, 1
"""The numbers of the schemas `true` and `false`."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas") + (
    "dependencies",
)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLES = ("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties") + (
    ("unevaluatedProperties", "propertyNames", "not", "if", "then", "else", "contentSchema")
)
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class Draft(Enum):
    """What the same keyword means differs between these."""

    OLD = auto()  # 4 to 7: `$ref` hides its siblings, `items` may be a list
    NEW = auto()  # 2019-09 and later


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema, where it stands, and the URI that its references are relative to."""

    schema: Schema
    pointer: Pointer
    base: str


class Document:
    """Subschemas are known by their numbers, given when they are first met."""

    def __init__(self, root: object) -> None:
        stated = object_of(root).get("$schema")
        self.draft = Draft.OLD if _is_old(stated) else Draft.NEW
        self.draft_4 = isinstance(stated, str) and "draft-04" in stated
        self._places: list[Place] = [Place({}, ROOT, ""), Place({"not": {}}, ROOT, "")]
        self._numbers: dict[int, int] = {}
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._num_dynamic: dict[str, int] = {}
        self.has_unevaluated = False
        self.names = {name: place for place, name in enumerate(_property_names(root))}
        """All declared names of properties, by where the document has them first."""
        self._index(root, ROOT, "")
        self.root = self.number(root, ROOT, "")

    def __getitem__(self, number: int) -> Place:
        return self._places[number]

    def number(self, schema: object, pointer: Pointer, base: str) -> int:
        """Of the schema that stands at `pointer`, new or known; it must live as long as we do."""
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not is_object(schema):
            raise Malformed(pointer, "a schema is an object, true or false")
        known = self._numbers.get(id(schema))
        if known is None:
            known = self._numbers[id(schema)] = len(self._places)
            self._places.append(Place(schema, pointer, self._base_of(schema, base)))
        return known

    def child(self, number: int, *tokens: str) -> int:
        """The subschema at these steps below the given one."""
        place = self._places[number]
        found: object = place.schema
        pointer = place.pointer
        for token in tokens:
            found = found[int(token)] if is_list(found) else object_of(found)[token]
            pointer = pointer / token
        return self.number(found, pointer, place.base)

    def made(self, schema: Schema, origin: int) -> int:
        """The number of a schema that stands nowhere: it belongs to `origin`."""
        place = self._places[origin]
        self._places.append(Place(schema, place.pointer, place.base))
        self._numbers[id(schema)] = len(self._places) - 1
        return len(self._places) - 1

    def any_of(self, numbers: Sequence[int], origin: int) -> int:
        """The number of a schema that one of these is enough for."""
        return self.made({"anyOf": [self._schema(number) for number in numbers]}, origin)

    def _schema(self, number: int) -> object:
        return number == TRUE if number in (TRUE, FALSE) else self._places[number].schema

    def target(self, number: int, keyword: str) -> int:
        """What the reference in `keyword` ('$ref', '$dynamicRef', …) names."""
        place = self._places[number]
        reference = place.schema[keyword]
        if not isinstance(reference, str):
            raise Malformed(place.pointer, f"{keyword!r} is a string", keyword=keyword)
        found = self._find(reference, place, keyword)
        if found is None:
            raise Malformed(
                place.pointer, f"the reference {reference!r:.200} leads nowhere", keyword=keyword
            )
        return self.number(*found)

    def _find(
        self, reference: str, place: Place, keyword: str
    ) -> tuple[object, Pointer, str] | None:
        uri, fragment = urldefrag(_joined(place.base, reference))
        fragment = unquote(fragment)
        resource = self._resources.get(uri)
        if resource is None:
            raise Unenforceable(
                place.pointer,
                f"{reference!r:.200} is not in this document, and nothing is fetched: copy what "
                f"it names into '$defs' and refer to it as '#/$defs/…'",
                keyword=keyword,
            )
        if fragment and not fragment.startswith("/"):
            if keyword == "$dynamicRef" and self._num_dynamic.get(fragment, 0) > 1:
                raise Unenforceable(
                    place.pointer,
                    f"{reference!r:.200} may name several schemas with this $dynamicAnchor: use "
                    "'$ref'",
                    keyword=keyword,
                )
            anchored = self._anchors.get((uri, fragment))
            if anchored is None:
                return None
            return anchored.schema, anchored.pointer, anchored.base
        return self._walked(resource, fragment.split("/")[1:])

    def _walked(self, resource: Place, tokens: Sequence[str]) -> tuple[object, Pointer, str] | None:
        found: object = resource.schema
        pointer, base = resource.pointer, resource.base
        for token in tokens:
            key = token.replace("~1", "/").replace("~0", "~")
            if is_list(found):
                if not key.isascii() or not key.isdigit() or int(key) >= len(found):
                    return None
                found = found[int(key)]
            elif is_object(found) and key in found:
                found = found[key]
            else:
                return None
            pointer = pointer / key
            base = self._base_of(found, base)
        return found, pointer, base

    def _index(self, schema: object, pointer: Pointer, base: str) -> None:
        """Note what `schema` and everything below it is called."""
        todo = [(schema, pointer, base)]
        while todo:
            schema, pointer, base = todo.pop()
            if not is_object(schema):
                continue
            inner = self._base_of(schema, base)
            place = Place(schema, pointer, inner)
            if pointer is ROOT:
                self._resources.setdefault("", place)
            if inner != base or pointer is ROOT:
                self._resources.setdefault(inner, place)
            self._index_anchors(place)
            self.has_unevaluated |= bool(schema.keys() & _UNEVALUATED)
            todo += [(child, at, inner) for child, at in _subschemas(schema, pointer)]

    def _index_anchors(self, place: Place) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = place.schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault((place.base, name), place)
                if keyword == "$dynamicAnchor":
                    self._num_dynamic[name] = self._num_dynamic.get(name, 0) + 1
        if self.draft is Draft.OLD:
            name = place.schema.get("id" if self.draft_4 else "$id")
            if isinstance(name, str) and name.startswith("#"):
                self._anchors.setdefault((place.base, name[1:]), place)

    def _base_of(self, schema: object, base: str) -> str:
        if not is_object(schema):
            return base
        stated = schema.get("id" if self.draft_4 else "$id")
        hidden = self.draft is Draft.OLD and "$ref" in schema
        if not isinstance(stated, str) or stated.startswith("#") or hidden:
            return base
        return urldefrag(_joined(base, stated)).url


def _subschemas(schema: Schema, pointer: Pointer) -> Iterator[tuple[object, Pointer]]:
    for keyword in MAPS:
        for name, child in object_of(schema.get(keyword)).items():
            yield child, pointer / keyword / name
    for keyword in _LISTS:
        for index, child in enumerate(list_of(schema.get(keyword))):
            yield child, pointer / keyword / str(index)
    for keyword in _SINGLES:
        if keyword in schema:
            yield schema[keyword], pointer / keyword


def _property_names(root: object) -> list[str]:
    """Each once, in the order of the text."""
    found: dict[str, None] = {}
    todo: list[tuple[object, str | None]] = [(root, None)]  # with the name of a property
    while todo:
        schema, name = todo.pop()
        if name is not None:
            found[name] = None
        if is_list(schema):
            todo += [(item, None) for item in reversed(schema)]
        elif is_object(schema):
            inside: list[tuple[object, str | None]] = []
            for keyword, child in schema.items():
                if keyword == "properties" and is_object(child):
                    inside += [(value, name) for name, value in child.items()]
                else:
                    inside.append((child, None))
            todo += reversed(inside)
    return list(found)


def _joined(base: str, reference: str) -> str:
    """`urljoin`, which can't join below a URN."""
    if base.startswith("urn:") and reference.startswith("#"):
        return urldefrag(base).url + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # "http://[": no URI at all
        return reference


def _is_old(stated: object) -> bool:
    return isinstance(stated, str) and any(
        f"draft-0{number}" in stated for number in (3, 4, 5, 6, 7)
    )


def is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def object_of(value: object) -> Schema:
    return value if is_object(value) else {}


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def list_of(value: object) -> Sequence[object]:
    return value if is_list(value) else []
