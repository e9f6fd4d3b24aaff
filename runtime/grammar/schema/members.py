"""Questions about facts: what a key's value must be, which strings there are, what holds.

`Holding` decides about whole values as the facts say: for enumerated values, which need no
grammar but their spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import cast

from ..regular import (
    TEXT,
    Regex,
    alt,
    both,
    literal,
    matches,
    negated,
    with_length,
)
from .document import is_list, is_object
from .facts import (
    ANYTHING,
    NUMBERS,
    Arrays,
    Conjunction,
    Contains,
    Facts,
    Frozen,
    Numbers,
    ObjectRule,
    Objects,
    Strings,
)
from .values import fraction, frozen, type_of


def named_value(objects: Objects, name: str) -> Conjunction:
    """What the value of key `name` is, if the key is there."""
    found = ANYTHING
    for rule in objects.rules:
        found |= _value_by_rule(rule, name)
    return found


def _value_by_rule(rule: ObjectRule, name: str) -> Conjunction:
    said = [value for key, value in rule.names if key == name]
    said += [value for keys, value in rule.patterns if matches(keys, name)]
    if not said and rule.rest is not None:
        said = [rule.rest]
    return ANYTHING.union(*said)


def strings_of(facts: Facts) -> Regex:
    """The strings that are allowed; empty if none is."""
    if "string" not in facts.types:
        return alt()
    parts = [language(facts.strings)]
    if facts.values is not None:
        values = [value.value for value in facts.values if value.type == "string"]
        parts.append(alt(*(literal(cast(str, value)) for value in values)))
    excluded = [literal(cast(str, v.value)) for v in facts.excluded if v.type == "string"]
    if excluded:
        parts.append(negated(alt(*excluded)))
    return both(*parts)


def language(strings: Strings) -> Regex:
    """TEXT if nothing is asked."""
    found = both(TEXT, *strings.languages) if strings.languages else TEXT
    return with_length(found, strings.lo, strings.hi)


class Holding:
    """Whether values are valid; `of` gives the facts of a conjunction."""

    def __init__(self, of: Callable[[Conjunction], Sequence[Facts]]) -> None:
        self._of = of

    def values(self, facts: Facts) -> Iterator[object]:
        """Of those that `facts` lists."""
        assert facts.values is not None
        excluded = set(facts.excluded)  # there may be thousands of both
        rest = replace(facts, values=None, excluded=())
        return (v.value for v in facts.values if v not in excluded and self.facts_hold(rest, v))

    def holds(self, conjunction: Conjunction, value: object) -> bool:
        asked = Frozen(frozen(value), type_of(value), value)
        return any(self.facts_hold(facts, asked) for facts in self._of(conjunction))

    def facts_hold(self, facts: Facts, asked: Frozen) -> bool:
        value = asked.value
        if asked.type not in facts.types or asked in facts.excluded:
            return False
        if facts.values is not None and asked not in facts.values:
            return False
        if asked.type in NUMBERS:
            return number_holds(facts.numbers, fraction(value))
        if isinstance(value, str):
            lo, hi = facts.strings.lo, facts.strings.hi
            fits = lo <= len(value) and (hi is None or len(value) <= hi)
            return fits and all(matches(each, value) for each in facts.strings.languages)
        if is_list(value):
            return self._array_holds(facts.arrays, value)
        return not is_object(value) or self._object_holds(facts.objects, dict(value))

    def _array_holds(self, arrays: Arrays, value: list[object]) -> bool:
        if not (arrays.lo <= len(value) <= (len(value) if arrays.hi is None else arrays.hi)):
            return False
        if arrays.unique and len(set(map(frozen, value))) < len(value):
            return False
        return all(
            self.holds(rule[i], item) for rule in arrays.rules for i, item in enumerate(value)
        ) and all(self._contains(contains, value) for contains in arrays.contains)

    def _contains(self, contains: Contains, value: list[object]) -> bool:
        count = sum(self.holds(contains.item, item) for item in value[contains.start :])
        return contains.lo <= count and (contains.hi is None or count <= contains.hi)

    def _object_holds(self, objects: Objects, value: dict[str, object]) -> bool:
        if not (objects.lo <= len(value) <= (len(value) if objects.hi is None else objects.hi)):
            return False
        return (
            all(name in value for name in objects.required)
            and all(self.holds(named_value(objects, key), item) for key, item in value.items())
            and all(self.holds(objects.names, key) for key in value)
            and all(
                any(matches(e.keys, key) and self.holds(e.value, v) for key, v in value.items())
                for e in objects.exists
            )
        )


def number_holds(numbers: Numbers, value: Fraction) -> bool:
    lower, upper = numbers.lower, numbers.upper
    if lower is not None and (value < lower or (numbers.lower_open and value == lower)):
        return False
    if upper is not None and (value > upper or (numbers.upper_open and value == upper)):
        return False
    return all((value / step).denominator == 1 for step in numbers.multiples) and all(
        (value / step).denominator != 1 for step in numbers.not_multiples
    )
