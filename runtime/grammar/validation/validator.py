"""Evaluates a value against the schemas of a document: the loop over keywords, and its state.

Which keywords there are and what they mean is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from .outcome import Misshapen, Uncheckable, Violation
from .reading import Json, Object
from .references import Document, Resource
from .values import short

_LAST = ("unevaluatedItems", "unevaluatedProperties")
"""They ask what all others have seen."""


@dataclass(slots=True)
class Seen:
    """What of one object or array some schemas have spoken about, as `unevaluated…` asks."""

    keys: set[str] = field(default_factory=lambda: set[str]())
    indices: set[int] = field(default_factory=lambda: set[int]())

    def add(self, other: Seen) -> None:
        self.keys |= other.keys
        self.indices |= other.indices


@dataclass(slots=True)
class Spot:
    """A schema that is being applied: where it stands, how it was reached, what it has seen."""

    schema: Object
    owner: Resource
    scope: tuple[Resource, ...]
    """The resources entered on the way, outermost first; the last one is the owner."""
    seen: Seen = field(default_factory=Seen)


class Validator:
    """For one document and the keywords that are given; checks one value after another."""

    def __init__(self, document: Document, keywords: Mapping[str, Keyword]) -> None:
        self.document = document
        self._keywords = keywords
        self._following: set[tuple[int, int]] = set()

    def check(self, value: Json) -> None:
        """`Violation` at the first keyword that the value fails."""
        root = self.document.root
        self._evaluate(root.root, value, root, ())

    def within(self, spot: Spot, schema: Json, value: Json) -> Seen:
        """What a subschema of `spot` sees of the value; `Violation` if it doesn't accept it."""
        return self._evaluate(schema, value, spot.owner, spot.scope)

    def accepts(self, spot: Spot, schema: Json, value: Json) -> Seen | None:
        """As `within`, but None where the subschema does not accept the value."""
        try:
            return self.within(spot, schema, value)
        except Violation:
            return None

    def part(self, spot: Spot, schema: Json, value: Json, step: str) -> None:
        """A subschema of `spot` for what stands at `step` of the value at hand."""
        try:
            self.within(spot, schema, value)
        except Violation as violation:
            violation.path.append(step)
            raise

    def follow(self, spot: Spot, target: tuple[Json, Resource], value: Json) -> Seen:
        """What a reference names, unless that is being applied to this very value already."""
        schema, owner = target
        turn = (id(schema), id(value))
        if turn in self._following:
            raise Uncheckable("a reference leads back to itself")
        self._following.add(turn)
        try:
            return self._evaluate(schema, value, owner, spot.scope)
        finally:
            self._following.remove(turn)

    def _evaluate(
        self, schema: Json, value: Json, nearby: Resource, scope: tuple[Resource, ...]
    ) -> Seen:
        """`nearby` is the resource of what led to the schema, `scope` all those on the way."""
        if schema is True:
            return Seen()
        if schema is False:
            raise Violation("nothing is allowed here")
        if not isinstance(schema, dict):
            raise Uncheckable(f"{short(schema)} is not a schema")
        owner = self.document.owner_of(schema, nearby)
        if not scope or scope[-1] is not owner:
            scope = (*scope, owner)
        spot = Spot(schema, owner, scope)
        for keyword, argument in _in_order(schema, owner):
            apply = self._keywords.get(keyword)
            if apply is None:
                continue
            try:
                apply(self, argument, value, spot)
            except Misshapen as trouble:
                raise Uncheckable(f"{keyword} {short(argument)}: {trouble}") from None
        return spot.seen


Keyword = Callable[[Validator, Json, Json, Spot], None]
"""`(validator, argument, value, spot)`: `Violation` where the value fails the keyword."""


def _in_order(schema: Object, owner: Resource) -> Iterator[tuple[str, Json]]:
    if "$ref" in schema and owner.hides_siblings:
        yield "$ref", schema["$ref"]
        return
    for keyword, argument in schema.items():
        if keyword not in _LAST:
            yield keyword, argument
    for keyword in _LAST:
        if keyword in schema:
            yield keyword, schema[keyword]
