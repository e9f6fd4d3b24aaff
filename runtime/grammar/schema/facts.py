"""What one branch of a schema asserts, by the type of the value; no keyword is known here.

A schema is an "any of" of facts, facts are an "all of". Children are not looked into: they are
conjunctions of numbered subschemas, each asserted or denied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from ..regular import Regex
from .document import FALSE, TRUE

T = TypeVar("T")

TYPES = frozenset({"null", "boolean", "object", "array", "string", "integer", "fraction"})
"""A number is an "integer" if its value is whole (1.0 is), else a "fraction"."""
NUMBERS = frozenset({"integer", "fraction"})

Conjunction = frozenset[tuple[int, bool]]
"""Subschemas by their numbers in the document: (number, True) must hold, (number, False) not."""

ANYTHING: Conjunction = frozenset()
NOTHING_AT_ALL: Conjunction = frozenset({(FALSE, True)})


def conjunct(number: int, holds: bool = True) -> Conjunction:
    if number in (TRUE, FALSE):
        return ANYTHING if (number == TRUE) == holds else NOTHING_AT_ALL
    return frozenset({(number, holds)})


@dataclass(frozen=True, slots=True)
class Numbers:
    """lower, upper: None where there is no bound; `*_open`: the bound itself is not allowed."""

    lower: Fraction | None = None
    lower_open: bool = False
    upper: Fraction | None = None
    upper_open: bool = False
    multiples: frozenset[Fraction] = frozenset()
    not_multiples: frozenset[Fraction] = frozenset()

    def __and__(self, other: Numbers) -> Numbers:
        lower, lower_open = _tighter(self.lower, self.lower_open, other.lower, other.lower_open, 1)
        upper, upper_open = _tighter(self.upper, self.upper_open, other.upper, other.upper_open, -1)
        return Numbers(
            lower,
            lower_open,
            upper,
            upper_open,
            self.multiples | other.multiples,
            self.not_multiples | other.not_multiples,
        )

    @property
    def is_empty(self) -> bool:
        if self.lower is None or self.upper is None:
            return False
        if self.lower == self.upper:
            return self.lower_open or self.upper_open
        return self.lower > self.upper


def _tighter(
    bound: Fraction | None, is_open: bool, other: Fraction | None, other_open: bool, sign: int
) -> tuple[Fraction | None, bool]:
    if bound is None or other is None:
        return (other, other_open) if bound is None else (bound, is_open)
    if bound == other:
        return bound, is_open or other_open
    return (bound, is_open) if (bound - other) * sign > 0 else (other, other_open)


@dataclass(frozen=True, slots=True)
class Strings:
    """Lengths in code points; `languages` must all contain the string."""

    lo: int = 0
    hi: int | None = None
    languages: frozenset[Regex] = frozenset()

    def __and__(self, other: Strings) -> Strings:
        languages = self.languages | other.languages
        return Strings(max(self.lo, other.lo), least(self.hi, other.hi), languages)

    @property
    def is_empty(self) -> bool:
        return self.hi is not None and self.lo > self.hi


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """Item i is `prefix[i]`, all later ones are `rest`."""

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ANYTHING

    def __getitem__(self, index: int) -> Conjunction:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Contains:
    """At least `lo` and at most `hi` items, of those from index `start` on, are `item`."""

    item: Conjunction
    lo: int = 1
    hi: int | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Arrays:
    lo: int = 0
    hi: int | None = None
    rules: tuple[ArrayRule, ...] = ()
    contains: tuple[Contains, ...] = ()
    unique: bool = False

    def __and__(self, other: Arrays) -> Arrays:
        return Arrays(
            max(self.lo, other.lo),
            least(self.hi, other.hi),
            joined(self.rules, other.rules),
            joined(self.contains, other.contains),
            self.unique or other.unique,
        )

    @property
    def is_empty(self) -> bool:
        return self.hi is not None and self.lo > self.hi


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """The value of a key is all of: its entry in `names`, those of the `patterns` that its key
    is in, and, if there are none of these, `rest` (None: nothing is said of other keys)."""

    names: tuple[tuple[str, Conjunction], ...] = ()
    patterns: tuple[tuple[Regex, Conjunction], ...] = ()
    rest: Conjunction | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """There is a key in `keys` whose value is `value`."""

    keys: Regex
    value: Conjunction


@dataclass(frozen=True, slots=True)
class Objects:
    """names: what all keys, as strings, are. required: without repetition."""

    lo: int = 0
    hi: int | None = None
    rules: tuple[ObjectRule, ...] = ()
    required: tuple[str, ...] = ()
    names: Conjunction = ANYTHING
    exists: tuple[Exists, ...] = ()

    def __and__(self, other: Objects) -> Objects:
        return Objects(
            max(self.lo, other.lo),
            least(self.hi, other.hi),
            joined(self.rules, other.rules),
            joined(self.required, other.required),
            self.names | other.names,
            joined(self.exists, other.exists),
        )

    @property
    def is_empty(self) -> bool:
        """Only what is certain without a look at children; so is a key that may not be there."""
        if self.hi is not None and max(self.lo, len(self.required)) > self.hi:
            return True
        return any(
            value >= NOTHING_AT_ALL
            for rule in self.rules
            for name, value in rule.names
            if name in self.required
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """values: the only values that are allowed, None if any is. excluded: those that are not."""

    types: frozenset[str] = TYPES
    numbers: Numbers = Numbers()
    strings: Strings = Strings()
    arrays: Arrays = Arrays()
    objects: Objects = Objects()
    values: tuple[Frozen, ...] | None = None
    excluded: tuple[Frozen, ...] = ()

    def __and__(self, other: Facts) -> Facts:
        """Both. `types` is empty where they are known to contradict each other."""
        values = self.values
        if values is None or other.values is None:
            values = other.values if values is None else values
        else:
            others = set(other.values)
            values = tuple(value for value in values if value in others)
        return Facts(
            self.types & other.types,
            self.numbers & other.numbers,
            self.strings & other.strings,
            self.arrays & other.arrays,
            self.objects & other.objects,
            values,
            joined(self.excluded, other.excluded),
        ).without_contradictions()

    def without_contradictions(self) -> Facts:
        impossible: set[str] = set()
        if self.numbers.is_empty:
            impossible |= NUMBERS
        if self.strings.is_empty:
            impossible.add("string")
        if self.arrays.is_empty:
            impossible.add("array")
        if self.objects.is_empty:
            impossible.add("object")
        if self.values is not None:
            impossible |= TYPES - {value.type for value in self.values}
        types = self.types - impossible
        return self if types == self.types else replace(self, types=types)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A JSON value; equal to what a schema calls equal."""

    key: object
    type: str
    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def least(first: int | None, second: int | None) -> int | None:
    """Of two bounds, None being no bound."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def joined(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    """Both, without repetitions, in order."""
    return tuple(dict.fromkeys((*first, *second)))
