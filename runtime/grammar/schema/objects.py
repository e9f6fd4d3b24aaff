"""The grammar of objects: declared keys in their order, then others.

Keys that are not declared may stand in any order; the grammar can't see that one of them stands
twice, so it is written where two different ones are needed as two that can't be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from ..cfg import EMPTY, NEVER, Call, Expr, Lexeme, Text, choice, repeat, sequence
from ..regular import (
    ANY_CHAR,
    TEXT,
    CharSet,
    Regex,
    alt,
    both,
    chars,
    json_spelled,
    literal,
    matches,
    negated,
    seq,
)
from .facts import ANYTHING, NOTHING_AT_ALL, Conjunction, ObjectRule, Objects
from .members import Holding, named_value
from .trouble import Pointer, TooComplex
from .values import spelled

MAX_STATES = 4_000
_MAX_PATTERNS = 6
_MAX_WAYS = 64
_NUM_PLACES = 2


class Builder(Protocol):
    """What a grammar under construction offers to its parts."""

    open_objects: bool
    has_free_keys: bool
    holding: Holding
    pointer: Pointer

    def value(self, conjunction: Conjunction) -> Expr: ...
    def rule(self, expr: Expr) -> Call: ...
    def reserve(self) -> Call: ...
    def define(self, call: Call, expr: Expr) -> None: ...
    def key_language(self, conjunction: Conjunction) -> Regex: ...
    def finite_values(self, conjunction: Conjunction) -> list[object] | None: ...
    def note(self, text: str) -> None: ...
    def rank(self, name: str) -> int: ...


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    value: Conjunction
    is_required: bool


@dataclass(frozen=True, slots=True)
class _Others:
    """Keys in `keys` have values of `value`."""

    keys: Regex
    value: Conjunction


def object_expr(objects: Objects, builder: Builder) -> Expr:
    """NEVER where no object is valid."""
    ways = _ways(objects, builder)
    if ways is None:
        raise TooComplex(builder.pointer, "too many ways to have the keys that 'not' asks for")
    return choice(*(_Shape(way, forced, builder).expr() for way, forced in ways))


def _ways(objects: Objects, builder: Builder) -> list[tuple[Objects, tuple[_Others, ...]]] | None:
    """Each `exists` is met by a declared key, or by another one that must be there."""
    names = _declared(objects, builder)
    found: list[tuple[Objects, tuple[_Others, ...]]] = []
    choices = [
        [*(name for name in names if matches(exists.keys, name)), None] for exists in objects.exists
    ]
    plain = replace(objects, exists=())
    for chosen in product(*choices):
        way, forced = plain, tuple[_Others, ...]()
        for name, exists in zip(chosen, objects.exists, strict=True):
            if name is None:
                forced = (*forced, _Others(exists.keys, exists.value))
            else:
                rule = ObjectRule(names=((name, exists.value),))
                way &= Objects(rules=(rule,), required=(name,))
        found.append((way, forced))
        if len(found) > _MAX_WAYS:
            return None
    return found


def _declared(objects: Objects, builder: Builder) -> list[str]:
    """In the order of the one list of properties; of several, of the document."""
    lists = [rule.names for rule in objects.rules if rule.names]
    names = [name for listed in lists for name, _ in listed]
    if len(lists) > 1:
        names.sort(key=builder.rank)
    return list(dict.fromkeys([*names, *objects.required]))


class _Shape:
    """Objects with these facts (`exists` aside), and `forced` keys beside the declared ones."""

    def __init__(self, objects: Objects, forced: Sequence[_Others], builder: Builder) -> None:
        self._objects, self._builder = objects, builder
        self._declared = _declared(objects, builder)
        self._named = list(self._named_members())
        self._lo, self._hi = objects.lo, objects.hi
        num_required = sum(member.is_required for member in self._named)
        needs_others = self._lo > len(self._named)
        self._others = self._other_members(needs_others)
        self._forced = [
            _Others(both(other.keys, need.keys), other.value | need.value)
            for need in forced
            for other in self._others
        ]
        self._num_forced = len(forced)
        if self._lo <= num_required + self._num_forced:
            self._lo = 0
        if not self._others and self._hi is not None and self._hi >= len(self._named):
            self._hi = None
        self._cap = max(1, self._lo, self._hi or 0)
        if self._cap * len(self._named) > MAX_STATES:
            raise TooComplex(builder.pointer, "too many keys to count them")
        self._states: dict[tuple[int, int], Call] = {}

    def _named_members(self) -> Iterator[_Named]:
        for name in self._declared:
            value = named_value(self._objects, name)
            if not self._builder.holding.holds(self._objects.names, name):
                value = NOTHING_AT_ALL
            yield _Named(name, value, name in self._objects.required)

    # -- keys that are not declared ------------------------------------------------------------

    def _other_members(self, needs_others: bool) -> list[_Others]:
        """By what is said of them: each class of keys once."""
        patterns = list(
            dict.fromkeys(keys for rule in self._objects.rules for keys, _ in rule.patterns)
        )
        if len(patterns) > _MAX_PATTERNS:
            raise TooComplex(
                self._builder.pointer, f"more than {_MAX_PATTERNS} 'patternProperties' at once"
            )
        found: list[_Others] = []
        for subset in range(1 << len(patterns)):
            inside = [keys for i, keys in enumerate(patterns) if subset >> i & 1]
            outside = [keys for i, keys in enumerate(patterns) if not subset >> i & 1]
            value = self._other_value(frozenset(inside))
            if value is None and not needs_others and not self._is_open:
                self._builder.note("objects have no keys but those that the schema names")
                continue
            if (value or ANYTHING) >= NOTHING_AT_ALL:
                continue
            found.append(_Others(self._other_keys(inside, outside), value or ANYTHING))
        return found

    @property
    def _is_open(self) -> bool:
        return self._builder.open_objects or not self._declared

    def _other_value(self, inside: frozenset[Regex]) -> Conjunction | None:
        """None where the schema says nothing of such keys."""
        found: Conjunction | None = ANYTHING if inside else None
        for rule in self._objects.rules:
            said = [value for keys, value in rule.patterns if keys in inside]
            if not said and rule.rest is not None and rule.rest != ANYTHING:
                said = [rule.rest]
            if said:
                found = ANYTHING.union(found or ANYTHING, *said)
        return found

    def _other_keys(self, inside: Sequence[Regex], outside: Sequence[Regex]) -> Regex:
        languages = [*inside, *map(negated, outside)]
        if self._declared:
            languages.append(negated(alt(*map(literal, self._declared))))
        if self._objects.names != ANYTHING:
            languages.append(self._builder.key_language(self._objects.names))
        return both(TEXT, *languages)

    def _entry(self, other: _Others) -> Expr:
        self._builder.has_free_keys = True
        quoted = seq(literal('"'), json_spelled(other.keys), literal('"'))
        return sequence(Lexeme(quoted), Text(":"), self._builder.value(other.value))

    # -- the whole -----------------------------------------------------------------------------

    def expr(self) -> Expr:
        if self._hi is not None and self._lo > self._hi:
            return NEVER
        if self._num_forced > 1:
            self._builder.note("objects that need two keys that are not declared are left out")
            return NEVER
        return sequence(Text("{"), self._from(0, 0), Text("}"))

    def _from(self, index: int, count: int) -> Expr:
        """Of the members from `index` on, after `count` of them (capped)."""
        if index == len(self._named):
            return self._rest(count)
        key = (index, count)
        if key not in self._states:
            call = self._states[key] = self._builder.reserve()
            self._builder.define(call, self._member(index, count))
        return self._states[key]

    def _member(self, index: int, count: int) -> Expr:
        member = self._named[index]
        options: list[Expr] = []
        if not member.value >= NOTHING_AT_ALL and not self._is_full(count):
            start = Text(_comma(count) + spelled(member.name) + ":")
            value = self._builder.value(member.value)
            options.append(sequence(start, value, self._from(index + 1, self._next(count))))
        if not member.is_required:
            options.append(self._from(index + 1, count))
        return choice(*options)

    def _rest(self, count: int) -> Expr:
        """The forced member, then any others."""
        if not self._num_forced:
            return self._loop(count)
        if self._is_full(count):
            return NEVER
        forced = choice(*(self._entry(other) for other in self._forced))
        last = sequence(Text(","), forced) if count else forced
        others = choice(*(self._entry(other) for other in self._others))
        if self._hi is None and self._lo <= count + 1:
            # It stands last: should an earlier one have the same key, this one counts.
            start = repeat(sequence(others, Text(",")), 0, None)
            return sequence(Text(","), start, forced) if count else sequence(start, forced)
        return last if self._lo <= count + 1 else NEVER

    def _loop(self, count: int) -> Expr:
        if not self._others:
            return EMPTY if count >= self._lo else NEVER
        missing = max(self._lo - count, 0)
        if missing > 1:
            return self._distinct(count, missing)
        entry = self._builder.rule(choice(*(self._entry(other) for other in self._others)))
        more = sequence(Text(","), entry)
        left = None if self._hi is None else self._hi - count
        if left == 0:
            return EMPTY if not missing else NEVER
        if count:
            return repeat(more, missing, left)
        some = sequence(entry, repeat(more, 0, None if left is None else left - 1))
        return some if missing else choice(EMPTY, some)

    def _distinct(self, count: int, missing: int) -> Expr:
        """At least `missing` keys, of which two differ in one of their first letters."""
        if missing > 2:
            self._builder.note("objects that need over two keys that are not declared are left out")
            return NEVER
        if self._hi is not None and self._hi < count + missing:
            return NEVER
        left = None if self._hi is None else self._hi - count - missing
        any_entry = self._builder.rule(choice(*(self._entry(other) for other in self._others)))
        more = repeat(sequence(Text(","), any_entry), 0, left)
        self._builder.note("two keys that are not declared differ in one of their first letters")
        pairs = [
            sequence(self._entries_in(first), Text(","), self._entries_in(second))
            for first, second in _disjoint_keys()
        ]
        return sequence(Text(_comma(count)) if count else EMPTY, choice(*pairs), more)

    def _entries_in(self, keys: Regex) -> Expr:
        entries = (self._entry(_Others(both(o.keys, keys), o.value)) for o in self._others)
        return choice(*entries)

    def _is_full(self, count: int) -> bool:
        return self._hi is not None and count >= self._hi

    def _next(self, count: int) -> int:
        return min(count + 1, self._cap)


def _comma(count: int) -> str:
    return "," if count else ""


def _disjoint_keys() -> Iterator[tuple[Regex, Regex]]:
    """Pairs of languages without a common text; most pairs of different texts are in one."""
    for place in range(_NUM_PLACES):
        for bit in range(7):
            letters = CharSet((code, code) for code in range(128) if code >> bit & 1)
            has = seq(*[ANY_CHAR] * place, chars(letters), TEXT)
            yield has, negated(has)
            yield negated(has), has
