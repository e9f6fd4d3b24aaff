"""The keywords that look at one value and at no subschema: what they assert, and what their
denial does.

Each is read in one function that gives the facts; the denial is a list, any of which is enough.
A denial that can't be said is left out: less is accepted then, never more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from ..regular import TEXT, PatternError, Regex, both, negated, search_language
from .document import Place, is_list
from .facts import (
    NOTHING_AT_ALL,
    NUMBERS,
    TYPES,
    Arrays,
    Facts,
    Frozen,
    Numbers,
    ObjectRule,
    Objects,
    Strings,
)
from .formats import format_language
from .trouble import Malformed, Unenforceable
from .values import fraction, frozen, is_number, type_of

_NAMED = {
    "number": NUMBERS,
    "integer": frozenset({"integer"}),
    **{name: frozenset({name}) for name in ("null", "boolean", "object", "array", "string")},
}


def asserted(place: Place) -> Facts:
    """All of the keywords of `place` that this module knows."""
    facts = Facts()
    for keyword, read in _READERS.items():
        if keyword in place.schema:
            facts &= read(place)
    return facts


def denied(place: Place) -> Iterator[Facts]:
    """For each of these keywords, the ways in which it fails to hold."""
    for keyword, read in _READERS.items():
        if keyword in place.schema:
            yield from _denials(keyword, read(place))


def language_of(place: Place, pattern: object, keyword: str) -> Regex:
    """The strings that contain a match."""
    if not isinstance(pattern, str):
        raise Malformed(place.pointer, f"{keyword!r} is a string", keyword=keyword)
    try:
        return search_language(pattern)
    except PatternError as error:
        raise Unenforceable(
            place.pointer, f"the pattern {pattern!r:.200}: {error}", keyword=keyword
        ) from None


def frozen_value(value: object) -> Frozen:
    return Frozen(frozen(value), type_of(value), value)


_STRING = frozenset({"string"})
_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})

# -- reading -----------------------------------------------------------------------------------


def _types(place: Place) -> Facts:
    stated = place.schema["type"]
    names = stated if is_list(stated) else [stated]
    found: frozenset[str] = frozenset()
    for name in names:
        if not isinstance(name, str) or name not in _NAMED:
            raise Malformed(place.pointer, f"no such type: {name!r:.100}", keyword="type")
        found |= _NAMED[name]
    return Facts(types=found)


def _const(place: Place) -> Facts:
    return Facts(values=(frozen_value(place.schema["const"]),)).without_contradictions()


def _enum(place: Place) -> Facts:
    values = place.schema["enum"]
    if not is_list(values):
        raise Malformed(place.pointer, "'enum' is a list of values", keyword="enum")
    unique = dict.fromkeys(map(frozen_value, values))
    return Facts(values=tuple(unique)).without_contradictions()


def _minimum(place: Place) -> Facts:
    is_open = place.schema.get("exclusiveMinimum") is True
    return Facts(numbers=Numbers(lower=_number(place, "minimum"), lower_open=is_open))


def _maximum(place: Place) -> Facts:
    is_open = place.schema.get("exclusiveMaximum") is True
    return Facts(numbers=Numbers(upper=_number(place, "maximum"), upper_open=is_open))


def _exclusive_minimum(place: Place) -> Facts:
    if isinstance(place.schema["exclusiveMinimum"], bool):
        return Facts()  # in draft 4, a flag of 'minimum'
    return Facts(numbers=Numbers(lower=_number(place, "exclusiveMinimum"), lower_open=True))


def _exclusive_maximum(place: Place) -> Facts:
    if isinstance(place.schema["exclusiveMaximum"], bool):
        return Facts()
    return Facts(numbers=Numbers(upper=_number(place, "exclusiveMaximum"), upper_open=True))


def _multiple_of(place: Place) -> Facts:
    step = _number(place, "multipleOf")
    if step <= 0:
        raise Malformed(place.pointer, "'multipleOf' is above 0", keyword="multipleOf")
    return Facts(numbers=Numbers(multiples=frozenset({step})))


def _min_length(place: Place) -> Facts:
    return Facts(strings=Strings(lo=size(place, "minLength")))


def _max_length(place: Place) -> Facts:
    return Facts(strings=Strings(hi=size(place, "maxLength")))


def _pattern(place: Place) -> Facts:
    language = language_of(place, place.schema["pattern"], "pattern")
    return Facts(strings=Strings(languages=frozenset({language})))


def _format(place: Place) -> Facts:
    name = place.schema["format"]
    language = format_language(name) if isinstance(name, str) else None
    if language is None:
        return Facts()
    return Facts(strings=Strings(languages=frozenset({language})))


def _min_items(place: Place) -> Facts:
    return Facts(arrays=Arrays(lo=size(place, "minItems")))


def _max_items(place: Place) -> Facts:
    return Facts(arrays=Arrays(hi=size(place, "maxItems")))


def _unique_items(place: Place) -> Facts:
    return Facts(arrays=Arrays(unique=place.schema["uniqueItems"] is True))


def _required(place: Place) -> Facts:
    names = place.schema["required"]
    if isinstance(names, bool):  # of draft 3, where it belongs to the property; no assertion since
        return Facts()
    return Facts(objects=Objects(required=strings(place, names, "required")))


def _min_properties(place: Place) -> Facts:
    return Facts(objects=Objects(lo=size(place, "minProperties")))


def _max_properties(place: Place) -> Facts:
    return Facts(objects=Objects(hi=size(place, "maxProperties")))


_READERS: dict[str, Callable[[Place], Facts]] = {
    "type": _types,
    "const": _const,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
}


# -- denying -----------------------------------------------------------------------------------


def _denials(keyword: str, facts: Facts) -> Iterator[Facts]:
    if keyword == "type":
        yield Facts(types=TYPES - facts.types)
    elif keyword in ("const", "enum"):
        if facts.values is not None:
            yield Facts(excluded=facts.values)
    elif keyword == "format":
        return  # as an annotation it always holds
    else:
        yield from (Facts(types=NUMBERS, numbers=part) for part in _not_numbers(facts.numbers))
        yield from (Facts(types=_STRING, strings=part) for part in _not_strings(facts.strings))
        yield from (Facts(types=_ARRAY, arrays=part) for part in _not_arrays(facts.arrays))
        yield from (Facts(types=_OBJECT, objects=part) for part in _not_objects(facts.objects))


def _not_numbers(numbers: Numbers) -> Iterator[Numbers]:
    if numbers.lower is not None:
        yield Numbers(upper=numbers.lower, upper_open=not numbers.lower_open)
    if numbers.upper is not None:
        yield Numbers(lower=numbers.upper, lower_open=not numbers.upper_open)
    for step in numbers.multiples:
        yield Numbers(not_multiples=frozenset({step}))


def _not_strings(strings: Strings) -> Iterator[Strings]:
    yield from (Strings(lo=lo, hi=hi) for lo, hi in _outside(strings.lo, strings.hi))
    for language in strings.languages:
        yield Strings(languages=frozenset({both(TEXT, negated(language))}))


def _not_arrays(arrays: Arrays) -> Iterator[Arrays]:
    yield from (Arrays(lo=lo, hi=hi) for lo, hi in _outside(arrays.lo, arrays.hi))


def _not_objects(objects: Objects) -> Iterator[Objects]:
    yield from (Objects(lo=lo, hi=hi) for lo, hi in _outside(objects.lo, objects.hi))
    yield from map(lacking, objects.required)


def lacking(name: str) -> Objects:
    """Objects without this key."""
    return Objects(rules=(ObjectRule(names=((name, NOTHING_AT_ALL),)),))


def _outside(lo: int, hi: int | None) -> Iterator[tuple[int, int | None]]:
    """The ranges beside lo…hi."""
    if lo > 0:
        yield 0, lo - 1
    if hi is not None:
        yield hi + 1, None


# -- shapes ------------------------------------------------------------------------------------


def size(place: Place, keyword: str) -> int:
    value = place.schema[keyword]
    if not is_number(value) or fraction(value).denominator != 1 or fraction(value) < 0:
        raise Malformed(place.pointer, f"{keyword!r} is a whole number from 0", keyword=keyword)
    return int(fraction(value))


def _number(place: Place, keyword: str) -> Fraction:
    value = place.schema[keyword]
    if not is_number(value):
        raise Malformed(place.pointer, f"{keyword!r} is a number", keyword=keyword)
    return fraction(value)


def strings(place: Place, names: object, keyword: str) -> tuple[str, ...]:
    if not is_list(names) or not all(isinstance(name, str) for name in names):
        raise Malformed(place.pointer, f"{keyword!r} is a list of strings", keyword=keyword)
    return tuple(dict.fromkeys(str(name) for name in names))
