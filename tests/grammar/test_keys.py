"""Keys that stand twice, against Python's own reader of JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.keys import Keys

NAMES = st.sampled_from(["", "a", "aa", '"', "\\", "{", ",", "é", ":"])
LEAVES = st.one_of(st.none(), st.integers(-9, 9), NAMES)


def _members(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quoted = NAMES.map(lambda name: json.dumps(name, ensure_ascii=False))
    member = st.tuples(quoted, inner).map(":".join)
    objects = st.lists(member, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")
    arrays = st.lists(inner, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")
    return objects | arrays


TEXTS = st.recursive(
    LEAVES.map(lambda value: json.dumps(value, ensure_ascii=False)), _members, max_leaves=9
)


def has_repeated(text: str) -> bool:
    found = False

    def pairs(members: list[tuple[str, Any]]) -> None:
        nonlocal found
        names = [name for name, _ in members]
        found |= len(names) != len(set(names))

    json.loads(text, object_pairs_hook=pairs)
    return found


@given(TEXTS, st.data())
@settings(max_examples=300, deadline=None)
def test_a_repeated_key_is_seen_however_the_text_is_cut(text: str, data: st.DataObject) -> None:
    keys, rest = Keys(), text.encode()
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        keys.advance(rest[:cut])
        rest = rest[cut:]
    assert keys.has_repeated == has_repeated(text)
    assert keys.open == () and keys.string is None


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_the_key_that_repeats_is_seen_at_its_last_quote(text: str) -> None:
    keys = Keys()
    for place, byte in enumerate(text.encode()):
        before = keys.has_repeated
        keys.advance(bytes((byte,)))
        if keys.has_repeated and not before:
            assert byte == ord('"')
            assert text.encode()[place + 1 : place + 2] == b":"


def test_copies_go_on_separately() -> None:
    keys = Keys()
    keys.advance(b'{"a":1,"')
    other = keys.copy()
    keys.advance(b'a"')
    other.advance(b'b"')
    assert keys.has_repeated and not other.has_repeated


def test_what_is_barred_is_the_rest_of_each_key_that_can_still_come() -> None:
    keys = Keys()
    assert keys.barred() == []
    keys.advance(b'{"ab":"x","ac":{"z":1},')
    assert sorted(keys.barred()) == [b"ab", b"ac"]
    keys.advance(b'"a')
    assert sorted(keys.barred()) == [b"b", b"c"]
    keys.advance(b"b")
    assert keys.barred() == [b""]
    keys.advance(b'x":"a')
    assert keys.barred() == [] and keys.num_open == 3
