"""Spellings against Python's own JSON and UTF-8 readers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import (
    FREE_CONTENT,
    TEXT,
    NotPrintable,
    all_content,
    automaton,
    both,
    includes,
    json_spelled,
    literal,
    matches,
    search_language,
    seq,
    to_dfa,
    utf8_bytes,
)
from tests.regular_terms import UNIVERSE, Term, terms

SAMPLE = sorted(UNIVERSE)[::9]
PIECES = st.sampled_from(
    ["a", '"', "\\", "/", "b", "f", "n", "t", "u", "00", "1f", "d8", "DC", "0", "é", "\n", "\x7f"]
    + ["\\u", "\\ud83d", "\\uDC32", "\\uabcd", "𝒳"]
)
CONTENTS = st.lists(PIECES, max_size=6).map("".join)


def decoded(content: str) -> str | None:
    try:
        value: object = json.loads(f'"{content}"')
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def is_text(value: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in value)


def spelling(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


@settings(deadline=None)
@given(terms)
def test_the_one_spelling_of_each_text(term: Term) -> None:
    try:
        spelled = json_spelled(term.regex)
    except NotPrintable:
        assert "Automaton" in repr(term)
        return
    for text in SAMPLE:
        assert matches(spelled, spelling(text)) == (text in term.strings)


@settings(deadline=None)
@given(CONTENTS)
def test_all_content_is_every_text_once(content: str) -> None:
    value = decoded(content)
    is_canonical = value is not None and is_text(value) and spelling(value) == content
    assert matches(all_content(), content) == is_canonical
    assert matches(json_spelled(search_language("^[^]*$")), content) == is_canonical
    # A complement is taken within the spellings.
    assert matches(json_spelled(search_language("^(?!a)")), content) == (
        is_canonical and not content.startswith("a")
    )


@settings(deadline=None)
@given(CONTENTS)
def test_free_content_is_what_parses(content: str) -> None:
    value = decoded(content)
    assert matches(FREE_CONTENT, content) == (value is not None and is_text(value))


def test_spelled_content_is_free_content() -> None:
    assert includes(FREE_CONTENT, all_content())
    assert json_spelled(TEXT) is all_content()


@settings(deadline=None)
@given(st.text(max_size=4))
def test_any_text_has_a_spelling(text: str) -> None:
    assert matches(all_content(), spelling(text))
    assert matches(json_spelled(literal(text)), spelling(text))


@settings(deadline=None)
@given(terms)
def test_bytes(term: Term) -> None:
    try:
        encoded = utf8_bytes(term.regex)
    except NotPrintable:
        assert "Automaton" in repr(term)
        return
    for text in SAMPLE:
        assert matches(encoded, text.encode()) == (text in term.strings)


@settings(deadline=None)
@given(st.binary(max_size=5) | st.text(max_size=3).map(str.encode))
def test_only_utf8_is_in_byte_languages(data: bytes) -> None:
    try:
        data.decode()
        is_utf8 = True
    except UnicodeDecodeError:
        is_utf8 = False
    assert matches(utf8_bytes(TEXT), data) == is_utf8
    assert matches(utf8_bytes(search_language("^(?!a)")), data) == (
        is_utf8 and not data.startswith(b"a")
    )


@settings(deadline=None)
@given(st.text(min_size=1, max_size=1), st.text(max_size=6))
def test_bytes_of_a_class(char: str, others: str) -> None:
    language = utf8_bytes(search_language(f"^[{''.join(map(escaped, others + char))}]$"))
    assert matches(language, char.encode())
    inverse = utf8_bytes(search_language(f"^[^{''.join(map(escaped, others))}]$"))
    assert matches(inverse, char.encode()) == (char not in others)


def escaped(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"


def test_an_automaton_over_escaped_characters_is_not_spelled() -> None:
    plain = automaton(to_dfa(literal("ab")))
    assert json_spelled(plain) is plain
    quoted = automaton(to_dfa(seq(literal('"'), literal("é"))))
    with pytest.raises(NotPrintable):
        json_spelled(quoted)
    with pytest.raises(NotPrintable):
        utf8_bytes(both(quoted, literal("é")))
