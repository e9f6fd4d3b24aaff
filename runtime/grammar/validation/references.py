"""A schema document: its resources (`$id`), anchors, and what references in it name.

Knows no keyword but those that identify, refer and hold schemas; never fetches anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from urllib.parse import unquote, urldefrag, urljoin

from .outcome import Uncheckable
from .reading import Json, Object, read_json

_HOLD_ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items"}
    | {"not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
_HOLD_MANY = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_HOLD_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"}
    | {"properties"}
)
_DRAFTS = {
    "json-schema.org/draft-03/schema": 3,
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
}
_NEWEST = 2020


@dataclass(eq=False, slots=True)
class Resource:
    """A schema with a URI of its own, and what is identified relative to that."""

    uri: str
    root: Json
    draft: int
    anchors: dict[str, Json] = field(default_factory=lambda: {})
    dynamic_anchors: dict[str, Json] = field(default_factory=lambda: {})

    @property
    def hides_siblings(self) -> bool:
        """Whether what stands beside a `$ref` means nothing."""
        return self.draft <= 7

    @property
    def is_recursive(self) -> bool:
        return isinstance(self.root, dict) and self.root.get("$recursiveAnchor") is True


class Document:
    """All schemas of one document, each known to belong to a resource.

    Schemas are recognised by identity: the document keeps them alive.
    """

    def __init__(self, root: Json) -> None:
        self._resources: dict[str, Resource] = {}
        self._owners: dict[int, Resource] = {}
        self.root = self._add_resource(root, "", _NEWEST)

    def owner_of(self, schema: Json, nearby: Resource) -> Resource:
        """The resource that a schema belongs to; `nearby` is that of what led to it."""
        owner = self._owners.get(id(schema))
        if owner is None and isinstance(schema, dict):
            self._index(schema, nearby)  # reached through a keyword that holds no schema
            owner = self._owners[id(schema)]
        return owner or nearby

    def resolve(self, reference: str, base: Resource) -> tuple[Json, Resource]:
        """The schema that a reference in `base` names, and the resource it belongs to."""
        resource, fragment = self._locate(reference, base)
        if not fragment:
            return resource.root, resource
        if fragment.startswith("/"):
            return self._follow(fragment, resource, reference)
        for anchors in (resource.anchors, resource.dynamic_anchors):
            if fragment in anchors:
                return anchors[fragment], self.owner_of(anchors[fragment], resource)
        raise Uncheckable(f"the reference {reference!r:.200} names nothing")

    def resolve_dynamic(
        self, reference: str, base: Resource, scope: tuple[Resource, ...]
    ) -> tuple[Json, Resource]:
        """Of a `$dynamicRef`: the outermost resource in `scope` with that dynamic anchor wins."""
        resource, name = self._locate(reference, base)
        if name in resource.dynamic_anchors:
            for outer in scope:
                if name in outer.dynamic_anchors:
                    schema = outer.dynamic_anchors[name]
                    return schema, self.owner_of(schema, outer)
        return self.resolve(reference, base)

    def resolve_recursive(
        self, base: Resource, scope: tuple[Resource, ...]
    ) -> tuple[Json, Resource]:
        """Of draft 2019-09's `$recursiveRef`: the outermost of the resources that all recurse."""
        found = base
        if base.is_recursive:
            for outer in reversed(scope):
                if not outer.is_recursive:
                    break
                found = outer
        return found.root, found

    def _locate(self, reference: str, base: Resource) -> tuple[Resource, str]:
        """The resource that a reference is relative to, and its fragment."""
        if reference.startswith("#"):  # not left to `urljoin`, which knows no URNs
            return base, unquote(reference[1:])
        try:
            uri, fragment = urldefrag(urljoin(base.uri, reference))
        except ValueError as error:
            raise Uncheckable(f"the reference {reference!r:.200}: {error}") from None
        resource = self._resources.get(uri) or self._published(uri)
        if resource is None:
            raise Uncheckable(f"the reference {reference!r:.200} leads out of the schema")
        return resource, unquote(fragment)

    def _published(self, uri: str) -> Resource | None:
        """A meta-schema of a draft, which everyone knows."""
        registry = import_module("jsonschema_specifications").REGISTRY  # reads files: only here
        if uri not in registry:
            return None
        text = json.dumps(registry.contents(uri))
        return self._add_resource(read_json(text), uri, _NEWEST)

    def _follow(self, pointer: str, start: Resource, reference: str) -> tuple[Json, Resource]:
        found, owner = start.root, start
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key in map(str, range(len(found))):
                found = found[int(key)]
            else:
                raise Uncheckable(f"the reference {reference!r:.200} names nothing")
            owner = self._owners.get(id(found), owner)
        return found, self.owner_of(found, owner)

    def _add_resource(self, root: Json, base_uri: str, draft: int) -> Resource:
        draft = _draft_of(root, draft)
        resource = Resource(_join(base_uri, _id_of(root, draft) or ""), root, draft)
        self._resources.setdefault(resource.uri, resource)
        if isinstance(root, dict):
            self._index(root, resource)
        return resource

    def _index(self, schema: Object, owner: Resource) -> None:
        """Note who owns `schema` and all schemas in it, and their anchors."""
        pending: list[tuple[Json, Resource]] = [(schema, owner)]
        while pending:
            found, owner = pending.pop()
            if not isinstance(found, dict) or id(found) in self._owners:
                continue
            draft = _draft_of(found, owner.draft)
            if found is not owner.root and _id_of(found, draft) is not None:
                self._add_resource(found, owner.uri, owner.draft)
                continue
            self._owners[id(found)] = owner
            _note_anchors(found, owner)
            pending += ((child, owner) for child in _children(found))


def _children(schema: Object) -> Iterator[Json]:
    for keyword, argument in schema.items():
        if keyword in _HOLD_ONE and isinstance(argument, dict):
            yield argument
        elif keyword in _HOLD_MANY and isinstance(argument, list):
            yield from argument
        elif keyword in _HOLD_NAMED and isinstance(argument, dict):
            yield from argument.values()


def _note_anchors(schema: Object, owner: Resource) -> None:
    plain, dynamic = schema.get("$anchor"), schema.get("$dynamicAnchor")
    if isinstance(plain, str):
        owner.anchors[plain] = schema
    if isinstance(dynamic, str):
        owner.dynamic_anchors[dynamic] = schema
    identifier = schema.get("id" if owner.draft <= 4 else "$id")
    if owner.draft <= 7 and isinstance(identifier, str) and identifier.startswith("#"):
        owner.anchors[identifier[1:]] = schema


def _draft_of(schema: Json, inherited: int) -> int:
    stated = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(stated, str):
        return inherited
    return _DRAFTS.get(stated.partition("://")[2].rstrip("#"), _NEWEST)


def _id_of(schema: Json, draft: int) -> str | None:
    """The URI that a schema gives itself, without the fragment."""
    if not isinstance(schema, dict) or (draft <= 7 and "$ref" in schema):
        return None
    identifier = schema.get("id" if draft <= 4 else "$id")
    if not isinstance(identifier, str) or identifier.startswith("#"):
        return None
    return identifier.partition("#")[0]


def _join(base_uri: str, identifier: str) -> str:
    try:
        return urljoin(base_uri, identifier)
    except ValueError as error:
        raise Uncheckable(f"the identifier {identifier!r:.200}: {error}") from None
