"""The bounded cache against a list of what was used, in order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.grammar.byte_lru import ByteLru

MAX_BYTES = 100


@dataclass
class Value:
    num_bytes: int


@given(st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 9), st.integers(0, 120))))
def test_against_a_list(operations: list[tuple[str, int, int]]) -> None:
    cache: ByteLru[int, Value] = ByteLru(MAX_BYTES)
    kept: list[tuple[int, Value]] = []  # from the one not used for longest on
    for operation, key, size in operations:
        found = next((value for other, value in kept if other == key), None)
        if operation == "get":
            assert cache.get(key) is found
            if found is not None:
                kept = [*((k, v) for k, v in kept if k != key), (key, found)]
        else:
            cache.put(key, value := Value(size))
            kept = [(k, v) for k, v in kept if k != key]
            if size <= MAX_BYTES:
                kept.append((key, value))
            while sum(v.num_bytes for _, v in kept) > MAX_BYTES:
                kept.pop(0)
        assert cache.num_bytes == sum(v.num_bytes for _, v in kept) <= MAX_BYTES


def test_a_value_counts_with_its_size_when_it_came() -> None:
    cache: ByteLru[str, Value] = ByteLru(MAX_BYTES)
    growing = Value(40)
    cache.put("a", growing)
    growing.num_bytes = 1000
    cache.put("b", Value(70))
    assert cache.get("a") is None and cache.num_bytes == 70
