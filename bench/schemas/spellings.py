"""The texts that stand for one instance: an instance counts as accepted if any of them is.

A grammar may fix the order of keys, the spelling of numbers and of characters, and the spaces;
that is narrowing, which is allowed, and must not look like a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, permutations, product

from bench.schemas.declared import in_declared_order
from bench.schemas.values import Value, styles_of, write

MAX_PERMUTED_KEYS = 5
MAX_PERMUTATIONS = 60


def spellings(instance: Value, schema: Value) -> Iterator[str]:
    """Each text once: in every order of keys, every style."""
    seen: set[str] = set()
    styles = styles_of(instance)
    for ordered in orders(instance, schema):
        for style in styles:
            text = write(ordered, style)
            if text not in seen and _is_unicode(text):
                seen.add(text)
                yield text


def orders(instance: Value, schema: Value) -> Iterator[Value]:
    """Keys as given, sorted, as the schema declares them, and permuted where they are few."""
    return chain(
        (instance, _sorted(instance)),
        (in_declared_order(instance, schema, own_first=own) for own in (True, False)),
        islice(_permuted(instance), MAX_PERMUTATIONS),
    )


def _sorted(value: Value) -> Value:
    match value:
        case list():
            return [_sorted(item) for item in value]
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case _:
            return value


def _permuted(value: Value) -> Iterator[Value]:
    """The first orders of an object vary what is innermost and last."""
    match value:
        case list():
            yield from map(list, product(*map(_choices, value)))
        case dict():
            children = {key: _choices(child) for key, child in value.items()}
            is_small = len(value) <= MAX_PERMUTED_KEYS
            for keys in permutations(value) if is_small else [tuple(value)]:
                for chosen in product(*(children[key] for key in keys)):
                    yield dict(zip(keys, chosen, strict=True))
        case _:
            yield value


def _choices(value: Value) -> list[Value]:
    return list(islice(_permuted(value), MAX_PERMUTATIONS))


def _is_unicode(text: str) -> bool:
    """Lone surrogates can only be written as escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
