"""A schema as an "any of" of facts: what the keywords that hold subschemas mean.

`Branches.of(conjunction)` expands only what applies to the same value; children stay numbered
subschemas, so recursion through children is finite. What is left out is always an alternative:
the facts never allow what the schema does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import thread_time

from ..regular import Regex, alt, literal, negated
from .assertions import asserted, denied, lacking, language_of, size, strings
from .document import Document, Draft, Place, is_list, is_object, object_of
from .facts import (
    ANYTHING,
    NOTHING_AT_ALL,
    ArrayRule,
    Arrays,
    Conjunction,
    Contains,
    Exists,
    Facts,
    Frozen,
    ObjectRule,
    Objects,
    conjunct,
)
from .members import named_value, strings_of
from .trouble import ROOT, Malformed, TooComplex
from .values import as_schema

MAX_BRANCHES = 1_000
_MAX_MERGES = 60_000
_MAX_SUBSETS = 4
_MAX_DENIED = 3
_CLOCK_EVERY = 256  # the clock of a thread takes up to a millisecond to read

_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class _Reentered(Exception):
    """A question about a child needs what is being expanded."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What of an object or array a branch has looked at: unevaluated* is about the rest."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[Regex] = frozenset()
    all_names: bool = False
    num_items: int = 0
    all_items: bool = False
    items: frozenset[int] = frozenset()
    """Numbers of 'contains' schemas: an item that is one of these has been looked at."""

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_names or other.all_names,
            max(self.num_items, other.num_items),
            self.all_items or other.all_items,
            self.items | other.items,
        )


@dataclass(frozen=True, slots=True)
class Branch:
    facts: Facts
    seen: Seen = Seen()


_NEVER = Branch(Facts(types=frozenset()))


class Branches:
    """Expansions of one document's subschemas, each computed once.

    `notes` collects what was narrowed. Raises `TooComplex` beyond the bounds and `deadline` (of
    this thread's clock), `Malformed` and `Unenforceable` for what the schema itself says.
    """

    def __init__(self, document: Document, deadline: float) -> None:
        self._document = document
        self._deadline = deadline
        self._known: dict[tuple[int, bool], tuple[Branch, ...]] = {}
        self._open: dict[tuple[int, bool], None] = {}
        self._partial: set[tuple[int, bool]] = set()
        self._is_asking = False
        self._of: dict[Conjunction, tuple[Facts, ...]] = {}
        self._constants: dict[Frozen, int] = {}
        self._num_merges = 0
        self.notes: dict[str, None] = {}

    def of(self, conjunction: Conjunction) -> tuple[Facts, ...]:
        """Any of these is enough, and one is needed; none: nothing is valid."""
        found = self._of.get(conjunction)
        if found is None:
            parts = [self._expand(*part) for part in sorted(conjunction)]
            found = tuple(dict.fromkeys(branch.facts for branch in self._all_of(parts)))
            self._of[conjunction] = found
        return found

    # -- combining -----------------------------------------------------------------------------

    def _all_of(self, parts: Iterable[Sequence[Branch]]) -> list[Branch]:
        """One branch of each part at the same time, in all ways that do not contradict."""
        merged = [Branch(Facts())]
        for part in sorted(parts, key=len):
            found: dict[Branch, None] = {}
            for first in merged:
                for second in part:
                    self._count_merge()
                    facts = first.facts & second.facts
                    if facts.types:
                        found[Branch(facts, first.seen | second.seen)] = None
            merged = list(found)
            if len(merged) > MAX_BRANCHES:
                raise TooComplex(ROOT, f"its alternatives combine into more than {MAX_BRANCHES}")
        return merged

    def _count_merge(self) -> None:
        self._num_merges += 1
        is_late = self._num_merges % _CLOCK_EVERY == 0 and thread_time() > self._deadline
        if self._num_merges > _MAX_MERGES or is_late:
            raise TooComplex(ROOT, "its alternatives combine in too many ways")

    def _expand(self, number: int, holds: bool) -> tuple[Branch, ...]:
        key = (number, holds)
        if key in self._open:  # it applies itself to the same value: least fixed point
            if self._is_asking:
                raise _Reentered
            self._leave_out("an alternative that is the schema itself, without going deeper,")
            return ()
        if key not in self._known:
            self._open[key] = None
            try:
                expand = self._asserted if holds else self._denied
                self._known[key] = tuple(dict.fromkeys(expand(number, self._document[number])))
            finally:
                del self._open[key]
        if key in self._partial:
            self._partial.update(self._open)
        return self._known[key]

    def _leave_out(self, what: str) -> None:
        """All that is being expanded accepts less than its schema."""
        self.notes[f"{what} is left out"] = None
        self._partial.update(self._open)

    def _reference(self, place: Place) -> str | None:
        """The one keyword of a schema before 2019 that hides all others."""
        hides = self._document.draft is Draft.OLD and "$ref" in place.schema
        return "$ref" if hides else None

    # -- asserting -----------------------------------------------------------------------------

    def _asserted(self, number: int, place: Place) -> Iterable[Branch]:
        if (keyword := self._reference(place)) is not None:
            return self._expand(self._document.target(number, keyword), True)
        document, schema = self._document, place.schema
        own = asserted(place) & self._children(number, place)
        parts: list[Sequence[Branch]] = [[Branch(own, self._seen(number, place))]]
        if not own.types:
            return ()
        for keyword in _REFERENCES:
            if keyword in schema:
                parts.append(self._expand(document.target(number, keyword), True))
        for child in self._list(number, place, "allOf"):
            parts.append(self._expand(child, True))
        if "anyOf" in schema:
            parts.append(self._any_of(self._list(number, place, "anyOf")))
        if "not" in schema:
            parts.append(_unseen(self._expand(document.child(number, "not"), False)))
        if "if" in schema:
            parts.append(self._if_then_else(number, place))
        parts += self._dependents(number, place)
        if "oneOf" in schema:
            parts = [[branch] for branch in self._certain(parts)] + [p for p in parts if len(p) > 1]
            context = parts[0][0].facts
            parts.append(self._one_of(self._list(number, place, "oneOf"), context))
        found = self._all_of(parts)
        return [self._without_unevaluated(number, place, branch) for branch in found]

    def _any_of(self, children: Sequence[int]) -> list[Branch]:
        """Also several at once, where they look at different members."""
        found = [branch for child in children for branch in self._expand(child, True)]
        if self._document.has_unevaluated and len(children) <= _MAX_SUBSETS:
            for subset in range(1, 1 << len(children)):
                chosen = [child for i, child in enumerate(children) if subset >> i & 1]
                if len(chosen) > 1:
                    found += self._all_of([self._expand(child, True) for child in chosen])
        return found

    def _certain(self, parts: Sequence[Sequence[Branch]]) -> list[Branch]:
        """What holds whatever the other parts choose, as one branch."""
        return self._all_of([part for part in parts if len(part) == 1]) or [_NEVER]

    def _one_of(self, children: Sequence[int], context: Facts) -> list[Branch]:
        """Each, and none of the others that may hold beside it where `context` does."""
        found: list[Branch] = []
        tags = self._tags(children)
        for index, child in enumerate(children):
            mine = self._within(context, self._expand(child, True))
            others = [
                other
                for place, other in enumerate(children)
                if place != index and not self._are_disjoint(mine, other)
            ]
            if tags and len(others) > _MAX_DENIED:
                self.notes[f"the key {tags[0]!r:.50}, which tells alternatives apart, is there"] = (
                    None
                )
                needs = Facts(types=_OBJECT, objects=Objects(required=(tags[0],)))
                found += self._within(needs, mine)
            else:
                denials = [_unseen(self._expand(other, False)) for other in others]
                found += self._all_of([mine, *denials])
        return found

    def _within(self, context: Facts, branches: Iterable[Branch]) -> list[Branch]:
        """Those that do not contradict the context, which they hold then."""
        found = (Branch(context & branch.facts, branch.seen) for branch in branches)
        return [branch for branch in found if branch.facts.types]

    def _tags(self, children: Sequence[int]) -> list[str]:
        """Names of properties that list different values in each of these objects."""
        listed = [self._listed_members(child) for child in children]
        if not listed:
            return []
        found: list[str] = []
        for name in listed[0]:
            values = [members.get(name, frozenset()) for members in listed]
            together = frozenset[object]().union(*values)
            if all(values) and len(together) == sum(map(len, values)):
                found.append(name)
        return found

    def _listed_members(self, number: int) -> dict[str, frozenset[object]]:
        """Names of properties whose values are listed, in each branch, with the values."""
        found: dict[str, frozenset[object]] | None = None
        for branch in self._expand(number, True):
            if "object" in branch.facts.types:
                members = self._listed_in(branch.facts.objects)
                if found is not None:
                    members = {k: v | found[k] for k, v in members.items() if k in found}
                found = members
        return {} if found is None or (number, True) in self._partial else found

    def _listed_in(self, objects: Objects) -> dict[str, frozenset[object]]:
        found: dict[str, frozenset[object]] = {}
        for name in (name for rule in objects.rules for name, _ in rule.names):
            parts = self._child(named_value(objects, name))
            if parts and all(part.values is not None for part in parts):
                found[name] = frozenset(v.key for part in parts for v in part.values or ())
        return found

    def _are_disjoint(self, mine: Sequence[Branch], other: int) -> bool:
        """Certainly no value of `mine` is valid against `other`."""
        theirs = self._expand(other, True)
        if (other, True) in self._partial:
            return False
        for one in mine:
            for two in theirs:
                self._count_merge()
                if not self._is_certainly_empty(one.facts & two.facts):
                    return False
        return True

    def _is_certainly_empty(self, facts: Facts, depth: int = 3) -> bool:
        """False where it is not known."""
        if not facts.types:
            return True
        if facts.types != _OBJECT or depth == 0:
            return False
        for name in facts.objects.required:
            value = named_value(facts.objects, name)
            parts = self._child(value)
            if parts is not None and all(
                self._is_certainly_empty(part, depth - 1) for part in parts
            ):
                return True
        return False

    def _child(self, value: Conjunction) -> tuple[Facts, ...] | None:
        """All that `value` allows; None where that is not known, as it is being expanded."""
        was_asking, self._is_asking = self._is_asking, True
        try:
            found = self.of(value)
        except _Reentered:
            return None
        finally:
            self._is_asking = was_asking
        return None if value & self._partial else found

    def _if_then_else(self, number: int, place: Place) -> list[Branch]:
        document = self._document
        condition = document.child(number, "if")
        then = [document.child(number, "then")] if "then" in place.schema else []
        otherwise = [document.child(number, "else")] if "else" in place.schema else []
        if not then and not otherwise and not self._document.has_unevaluated:
            return [Branch(Facts())]
        holds = [self._expand(child, True) for child in (condition, *then)]
        fails: list[Sequence[Branch]] = [_unseen(self._expand(condition, False))]
        fails += [self._expand(child, True) for child in otherwise]
        return [*self._all_of(holds), *self._all_of(fails)]

    def _dependents(self, number: int, place: Place) -> Iterator[list[Branch]]:
        for name, dependent in self._dependencies(number, place):
            needs = Facts(types=_OBJECT, objects=Objects(required=(name,)))
            if isinstance(dependent, tuple):
                objects = Objects(required=tuple(dict.fromkeys((name, *dependent))))
                with_name = [Branch(replace(needs, objects=objects))]
            else:
                with_name = self._all_of([[Branch(needs)], self._expand(dependent, True)])
            yield [Branch(Facts(objects=lacking(name))), *with_name]

    def _dependencies(
        self, number: int, place: Place
    ) -> Iterator[tuple[str, tuple[str, ...] | int]]:
        """Names, each with the names or the subschema that it needs."""
        document = self._document
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in _members(place, keyword).items():
                if is_list(needed) or keyword == "dependentRequired":
                    yield name, strings(place, needed, keyword)
                else:
                    yield name, document.child(number, keyword, name)

    # -- children ------------------------------------------------------------------------------

    def _children(self, number: int, place: Place) -> Facts:
        return Facts(
            arrays=self._items(number, place), objects=self._properties(number, place)
        ).without_contradictions()

    def _properties(self, number: int, place: Place) -> Objects:
        document = self._document
        names = tuple(
            (name, conjunct(document.child(number, "properties", name)))
            for name in _members(place, "properties")
        )
        patterns = tuple(
            (
                language_of(place, pattern, "patternProperties"),
                conjunct(document.child(number, "patternProperties", pattern)),
            )
            for pattern in _members(place, "patternProperties")
        )
        rest = self._single(number, place, "additionalProperties")
        keys = self._single(number, place, "propertyNames")
        rules = (ObjectRule(names, patterns, rest),)
        return Objects(
            rules=rules if rules != (ObjectRule(),) else (),
            names=ANYTHING if keys is None else keys,
        )

    def _items(self, number: int, place: Place) -> Arrays:
        prefix, rest = self._item_schemas(number, place)
        rules = (ArrayRule(tuple(map(conjunct, prefix)), rest),) if prefix or rest else ()
        contains: tuple[Contains, ...] = ()
        if "contains" in place.schema:
            lo = size(place, "minContains") if "minContains" in place.schema else 1
            hi = size(place, "maxContains") if "maxContains" in place.schema else None
            item = conjunct(self._document.child(number, "contains"))
            contains = (Contains(item, lo, hi),)
        return Arrays(rules=rules, contains=contains)

    def _item_schemas(self, number: int, place: Place) -> tuple[list[int], Conjunction]:
        """Of the first items, and what all later ones are."""
        _document, schema = self._document, place.schema
        keyword, rest = "prefixItems", "items"
        if is_list(schema.get("items")):  # before 2020-12
            keyword, rest = "items", "additionalItems"
        prefix = self._list(number, place, keyword) if keyword in schema else []
        later = self._single(number, place, rest)
        return prefix, ANYTHING if later is None else later

    def _single(self, number: int, place: Place, keyword: str) -> Conjunction | None:
        if keyword not in place.schema:
            return None
        return conjunct(self._document.child(number, keyword))

    def _list(self, number: int, place: Place, keyword: str) -> list[int]:
        if keyword not in place.schema:
            return []
        children = place.schema[keyword]
        if not is_list(children) or (not children and keyword not in ("items", "prefixItems")):
            raise Malformed(place.pointer, f"{keyword!r} is a list of schemas", keyword=keyword)
        return [self._document.child(number, keyword, str(i)) for i in range(len(children))]

    # -- what is not evaluated -----------------------------------------------------------------

    def _seen(self, number: int, place: Place) -> Seen:
        schema = place.schema
        has_list = is_list(schema.get("items"))
        rest = "additionalItems" if has_list else "items"
        prefix = schema.get("items" if has_list else "prefixItems")
        return Seen(
            names=frozenset(object_of(schema.get("properties"))),
            patterns=frozenset(
                language_of(place, pattern, "patternProperties")
                for pattern in object_of(schema.get("patternProperties"))
            ),
            all_names="additionalProperties" in schema,
            num_items=len(prefix) if is_list(prefix) else 0,
            all_items=rest in schema,
            items=frozenset({self._document.child(number, "contains")})
            if "contains" in schema
            else frozenset(),
        )

    def _without_unevaluated(self, number: int, place: Place, branch: Branch) -> Branch:
        schema, seen = place.schema, branch.seen
        facts = branch.facts
        if "unevaluatedProperties" in schema:
            if not seen.all_names:
                rest = conjunct(self._document.child(number, "unevaluatedProperties"))
                names = tuple((name, ANYTHING) for name in sorted(seen.names))
                patterns = tuple((pattern, ANYTHING) for pattern in seen.patterns)
                rule = ObjectRule(names, patterns, rest)
                facts &= Facts(objects=Objects(rules=(rule,)))
            seen |= Seen(all_names=True)
        if "unevaluatedItems" in schema:
            if not seen.all_items:
                rest = self._unevaluated_item(number, seen)
                rule_ = ArrayRule((ANYTHING,) * seen.num_items, rest)
                facts &= Facts(arrays=Arrays(rules=(rule_,)))
            seen |= Seen(all_items=True)
        return Branch(facts, seen)

    def _unevaluated_item(self, number: int, seen: Seen) -> Conjunction:
        rest = self._document.child(number, "unevaluatedItems")
        if not seen.items:
            return conjunct(rest)
        made = self._document.any_of(sorted({rest, *seen.items}), number)
        return conjunct(made)

    # -- denying -------------------------------------------------------------------------------

    def _denied(self, number: int, place: Place) -> Iterable[Branch]:
        if (keyword := self._reference(place)) is not None:
            return self._expand(self._document.target(number, keyword), False)
        found = [Branch(facts) for facts in denied(place) if facts.types]
        found += [Branch(facts) for facts in self._denied_children(number, place)]
        return found + _unseen(self._denied_applicators(number, place))

    def _denied_applicators(self, number: int, place: Place) -> Iterator[Branch]:
        """The ways in which the keywords that apply schemas to the same value fail."""
        document, schema = self._document, place.schema
        for keyword in _REFERENCES:
            if keyword in schema:
                yield from self._expand(document.target(number, keyword), False)
        for child in self._list(number, place, "allOf"):
            yield from self._expand(child, False)
        if children := self._list(number, place, "anyOf"):
            yield from self._all_of([self._expand(child, False) for child in children])
        if children := self._list(number, place, "oneOf"):
            yield from self._not_one_of(children)
        if "not" in schema:
            yield from self._expand(document.child(number, "not"), True)
        if "if" in schema:
            yield from self._not_if_then_else(number, place)
        if "dependencies" not in schema or document.draft is Draft.OLD:
            for name, dependent in self._dependencies(number, place):
                yield from self._not_dependent(name, dependent)

    def _not_one_of(self, children: Sequence[int]) -> list[Branch]:
        found = self._all_of([self._expand(child, False) for child in children])
        for index, first in enumerate(children):
            for second in children[index + 1 :]:
                found += self._all_of([self._expand(first, True), self._expand(second, True)])
        return found

    def _not_if_then_else(self, number: int, place: Place) -> list[Branch]:
        document = self._document
        condition = document.child(number, "if")
        found: list[Branch] = []
        for keyword, holds in (("then", True), ("else", False)):
            if keyword in place.schema:
                child = document.child(number, keyword)
                parts = [self._expand(condition, holds), self._expand(child, False)]
                found += self._all_of(parts)
        return found

    def _not_dependent(self, name: str, dependent: tuple[str, ...] | int) -> list[Branch]:
        needs = Facts(types=_OBJECT, objects=Objects(required=(name,)))
        if isinstance(dependent, int):
            return self._all_of([[Branch(needs)], self._expand(dependent, False)])
        return [Branch(needs & Facts(objects=lacking(other))) for other in dependent]

    def _denied_children(self, number: int, place: Place) -> Iterator[Facts]:
        yield from (
            Facts(types=_OBJECT, objects=objects) for objects in self._not_properties(number, place)
        )
        yield from (Facts(types=_ARRAY, arrays=arrays) for arrays in self._not_items(number, place))
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in place.schema:
                self._leave_out(f"'not' of {keyword!r}")

    def _not_properties(self, number: int, place: Place) -> Iterator[Objects]:
        document = self._document
        names = list(_members(place, "properties"))
        for name in names:
            value = conjunct(document.child(number, "properties", name), False)
            if value != NOTHING_AT_ALL:
                rule = ObjectRule(names=((name, value),))
                yield Objects(rules=(rule,), required=(name,))
        matched = [literal(name) for name in names]
        for pattern in _members(place, "patternProperties"):
            keys = language_of(place, pattern, "patternProperties")
            matched.append(keys)
            value = conjunct(document.child(number, "patternProperties", pattern), False)
            if value != NOTHING_AT_ALL:
                yield Objects(exists=(Exists(keys, value),))
        if "additionalProperties" in place.schema:
            value = conjunct(document.child(number, "additionalProperties"), False)
            if value != NOTHING_AT_ALL:
                yield Objects(exists=(Exists(negated(alt(*matched)), value),))
        if "propertyNames" in place.schema:
            keys = self.string_language(conjunct(document.child(number, "propertyNames"), False))
            yield Objects(exists=(Exists(keys, ANYTHING),))

    def _not_items(self, number: int, place: Place) -> Iterator[Arrays]:
        prefix, rest = self._item_schemas(number, place)
        for index, child in enumerate(prefix):
            value = conjunct(child, False)
            if value != NOTHING_AT_ALL:
                yield Arrays(
                    lo=index + 1, rules=(ArrayRule((*(ANYTHING,) * index, value), ANYTHING),)
                )
        for later, holds in rest:
            value = conjunct(later, not holds)
            if value != NOTHING_AT_ALL:
                yield Arrays(contains=(Contains(value, start=len(prefix)),))
        for contains in self._items(number, place).contains:
            if contains.lo > 0:
                yield Arrays(contains=(replace(contains, lo=0, hi=contains.lo - 1),))
            if contains.hi is not None:
                yield Arrays(contains=(replace(contains, lo=contains.hi + 1, hi=None),))
        if place.schema.get("uniqueItems") is True:
            self._leave_out("'not' of 'uniqueItems'")

    # -- asking --------------------------------------------------------------------------------

    def string_language(self, conjunction: Conjunction) -> Regex:
        """The strings that are valid, with their lengths."""
        return alt(*(strings_of(facts) for facts in self.of(conjunction)))

    def exclusion(self, facts: Facts) -> Conjunction:
        """Denials of the objects and arrays that `facts` excludes."""
        found = ANYTHING
        for value in facts.excluded:
            if is_list(value.value) or is_object(value.value):
                if value not in self._constants:
                    made = self._document.made(as_schema(value.value), self._document.root)
                    self._constants[value] = made
                found |= conjunct(self._constants[value], False)
        return found


def _unseen(branches: Iterable[Branch]) -> list[Branch]:
    """What is denied has looked at nothing."""
    return [Branch(branch.facts) for branch in branches]


def _members(place: Place, keyword: str) -> dict[str, object]:
    members = place.schema.get(keyword, {})
    if not is_object(members):
        raise Malformed(place.pointer, f"{keyword!r} is an object", keyword=keyword)
    return dict(members)
