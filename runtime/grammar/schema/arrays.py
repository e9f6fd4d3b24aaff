"""The grammar of arrays: items by their place, and counted where the schema counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ..cfg import EMPTY, NEVER, Call, Expr, Text, choice, repeat, sequence
from .facts import ANYTHING, NOTHING_AT_ALL, Arrays, Conjunction, Contains, conjunct
from .objects import MAX_STATES, Builder
from .trouble import TooComplex, Unenforceable
from .values import frozen, spelled

_MAX_CONTAINS = 3
_MAX_IN_ANY_ORDER = 6
_MAX_IN_ORDER = 64


def array_expr(arrays: Arrays, builder: Builder) -> Expr:
    """NEVER where no array is valid."""
    if arrays.unique and (arrays.hi is None or arrays.hi > 1):
        body = _Unique(arrays, builder).body()
    elif arrays.contains:
        body = _Counted(arrays, builder).body()
    else:
        body = _Placed(arrays, builder).body()
    return sequence(Text("["), body, Text("]"))


def _item(arrays: Arrays, index: int) -> Conjunction:
    return ANYTHING.union(*(rule[index] for rule in arrays.rules))


def _num_placed(arrays: Arrays) -> int:
    """From this index on all items are asked for the same."""
    return max((len(rule.prefix) for rule in arrays.rules), default=0)


class _Placed:
    """Items whose count alone matters."""

    def __init__(self, arrays: Arrays, builder: Builder) -> None:
        self._arrays, self._builder = arrays, builder
        self._num_placed = _num_placed(arrays)
        if self._num_placed > MAX_STATES:
            raise TooComplex(builder.pointer, f"more than {MAX_STATES} 'prefixItems'")

    def body(self) -> Expr:
        """Built from the last placed item to the first, so that none is nested in the next."""
        expr = self._rest()
        for index in reversed(range(self._num_placed)):
            expr = self._builder.rule(self._with_item(index, expr))
        return expr

    def _with_item(self, index: int, later: Expr) -> Expr:
        """The items from `index` on."""
        arrays = self._arrays
        options: list[Expr] = [EMPTY] if index >= arrays.lo else []
        if arrays.hi is None or index < arrays.hi:
            item = self._builder.value(_item(arrays, index))
            options.append(sequence(*_separated(index, item), later))
        return choice(*options)

    def _rest(self) -> Expr:
        arrays, start = self._arrays, self._num_placed
        item = self._builder.value(_item(arrays, start))
        lo = max(arrays.lo - start, 0)
        hi = None if arrays.hi is None else max(arrays.hi - start, 0)
        if start:
            return repeat(sequence(Text(","), item), lo, hi)
        more = None if hi is None else hi - 1
        some = sequence(item, repeat(sequence(Text(","), item), max(lo - 1, 0), more))
        options: list[Expr] = [EMPTY] if lo == 0 else []
        return choice(*options, *([some] if hi != 0 else []))


class _Counted:
    """Items of which some kinds must occur so many times.

    A state is the index (capped where it no longer matters) and how many of each kind there
    were (capped likewise).
    """

    def __init__(self, arrays: Arrays, builder: Builder) -> None:
        self._arrays, self._builder = arrays, builder
        self._kinds = arrays.contains
        if len(self._kinds) > _MAX_CONTAINS:
            raise TooComplex(builder.pointer, f"more than {_MAX_CONTAINS} 'contains' at once")
        starts = (kind.start for kind in self._kinds)
        self._last = max(_num_placed(arrays), arrays.lo, arrays.hi or 0, *starts, 1)
        self._caps = tuple(k.lo if k.hi is None else k.hi + 1 for k in self._kinds)
        size = self._last
        for cap in self._caps:
            size *= cap + 1
        if size > MAX_STATES:
            raise TooComplex(builder.pointer, "items are counted too far")
        self._states: dict[tuple[int, tuple[int, ...]], Call] = {}

    def body(self) -> Expr:
        return self._from(0, (0,) * len(self._kinds))

    def _from(self, index: int, counts: tuple[int, ...]) -> Expr:
        if any(k.hi is not None and c > k.hi for k, c in zip(self._kinds, counts, strict=True)):
            return NEVER
        key = (min(index, self._last), counts)
        if key not in self._states:
            call = self._states[key] = self._builder.reserve()
            self._builder.define(call, choice(*self._options(*key)))
        return self._states[key]

    def _options(self, index: int, counts: tuple[int, ...]) -> Iterator[Expr]:
        arrays = self._arrays
        enough = all(c >= kind.lo for c, kind in zip(counts, self._kinds, strict=True))
        if index >= arrays.lo and enough:
            yield EMPTY
        if arrays.hi is not None and index >= arrays.hi:
            return
        choices = [self._ways(kind, index, c) for kind, c in zip(self._kinds, counts, strict=True)]
        for ways in product(*choices):
            value = _item(arrays, index).union(*(asked for _, asked in ways))
            if value >= NOTHING_AT_ALL:
                continue
            found = tuple(
                min(count + adds, cap)
                for count, (adds, _), cap in zip(counts, ways, self._caps, strict=True)
            )
            item = self._builder.value(value)
            yield sequence(*_separated(index, item), self._from(index + 1, found))

    def _ways(self, kind: Contains, index: int, count: int) -> list[tuple[int, Conjunction]]:
        """(1, the item is of the kind) and (0, it need not be, or must not be)."""
        if index < kind.start or (kind.hi is None and count >= kind.lo):
            return [(0, ANYTHING)]
        is_one = (1, kind.item)
        if kind.hi is None:
            return [is_one, (0, ANYTHING)]
        return [is_one, (0, _denied(kind.item))]


def _denied(item: Conjunction) -> Conjunction:
    """`contains` has one subschema: true, false, or a numbered one."""
    if item == ANYTHING:
        return NOTHING_AT_ALL
    if item == NOTHING_AT_ALL:
        return ANYTHING
    ((number, holds),) = item
    return conjunct(number, not holds)


class _Unique:
    """Items that all differ, of which there is a list of all possible ones.

    Few values may come in any order: a state is the set of those that were there. More come in
    the order in which the schema lists them.
    """

    def __init__(self, arrays: Arrays, builder: Builder) -> None:
        if arrays.contains:
            raise Unenforceable(
                builder.pointer,
                "'uniqueItems' can't be asked for beside 'contains'",
                keyword="uniqueItems",
            )
        self._arrays, self._builder = arrays, builder
        self._num_placed = _num_placed(arrays)
        by_key: dict[object, str] = {}
        self._fitting: list[set[object]] = []
        for index in range(self._num_placed + 1):
            values = builder.finite_values(_item(arrays, index))
            if values is None:
                raise Unenforceable(
                    builder.pointer,
                    "'uniqueItems' can only be enforced where all possible items are listed "
                    "('enum', 'const', boolean); or leave it out",
                    keyword="uniqueItems",
                )
            self._fitting.append({frozen(value) for value in values})
            by_key.update((frozen(value), spelled(value)) for value in values)
        self._keys = list(by_key)
        self._texts = list(by_key.values())
        self._any_order = len(self._keys) <= _MAX_IN_ANY_ORDER
        if not self._any_order:
            if len(self._keys) > _MAX_IN_ORDER:
                raise TooComplex(builder.pointer, f"'uniqueItems' of over {_MAX_IN_ORDER} values")
            builder.note("items that must differ come in the order in which they are listed")
        self._states: dict[tuple[int, int], Call] = {}

    def body(self) -> Expr:
        return self._from(0, 0)

    def _from(self, index: int, used: int) -> Expr:
        """used: bit i for value i: it was there, or may not come any more."""
        limit = max(self._num_placed, self._arrays.lo, self._arrays.hi or 0, 1)
        key = (min(index, limit), used)
        if key not in self._states:
            if len(self._states) > MAX_STATES:
                raise TooComplex(self._builder.pointer, "'uniqueItems' of too many values")
            call = self._states[key] = self._builder.reserve()
            self._builder.define(call, choice(*self._options(*key)))
        return self._states[key]

    def _options(self, index: int, used: int) -> Iterator[Expr]:
        if index >= self._arrays.lo:
            yield EMPTY
        if self._arrays.hi is not None and index >= self._arrays.hi:
            return
        fitting = self._fitting[min(index, self._num_placed)]
        for i, (key, text) in enumerate(zip(self._keys, self._texts, strict=True)):
            if key in fitting and not used >> i & 1:
                now = used | 1 << i if self._any_order else (2 << i) - 1
                yield sequence(*_separated(index, Text(text)), self._from(index + 1, now))


def _separated(index: int, item: Expr) -> Sequence[Expr]:
    return (Text(","), item) if index else (item,)
