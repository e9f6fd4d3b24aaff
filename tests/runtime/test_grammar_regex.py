"""The regex dialect: what is refused here, and that the rest means what Python's `re` says."""

from __future__ import annotations

import re

import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.regex_dialect import translate_regex


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        ("", ""),
        ("^$", ""),
        ("^a$|^b$|c", "a|b|c"),
        ("a.c", r"a[^\n]c"),
        (r"a\.c[.]", r"a\.c[.]"),
        (r"[\]^$.(|]x.", r"[\]^$.(|]x[^\n]"),
        (r"[^\\].", r"[^\\][^\n]"),
        ("[[^]$", "[[^]"),
        (r"\$\^", r"\$\^"),
        (r"(a|b)$", "(a|b)"),
        (r"\x41\u0042", r"\x41\u0042"),
        (r"(", "("),
    ],
)
def test_translation(pattern: str, translated: str) -> None:
    assert translate_regex(pattern) == translated


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a^b", r"position 2: '\^'"),
        ("a$b", r"position 2: '\$'"),
        ("(^a)", "may only stand at an end"),
        (r"\ud83d\ude00", r"position 1: \\ud83d is half a character"),
        (r"x[a\uDFFF]", r"position 4: \\uDFFF is half a character"),
        ("(a$)", "may only stand at an end"),
        (r"\Aab", r"position 1: the escape \\A"),
        (r"ab\Z", r"position 3: the escape \\Z"),
        (r"a\e", r"the escape \\e"),
        (r"[\B]", r"the escape \\B"),
        (r"[\1]", r"the escape \\1"),
        (r"\x4", r"the escape \\x"),
        (r"\x{41}", r"the escape \\x"),
        (r"\u12", r"the escape \\u"),
        ("[]a]", "an empty class"),
        ("[^]a]", "an empty class"),
        (r"[\^a]", "put it later"),
        (r"[\x5ea]", "put it later"),
        ("ab\\", "position 3: the pattern ends with a backslash"),
        ("[ab\\", "ends with a backslash"),
    ],
)
def test_refused_at_its_position(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        translate_regex(pattern)
    assert refused.value.param == "regex"


@pytest.mark.parametrize("pattern", ["^a|b$", "x.y", r"[^\d.]+\.", r"^(a|b)*$|^c$", "[a^$.]"])
def test_the_translation_matches_the_same_texts(pattern: str) -> None:
    translated = re.compile(translate_regex(pattern))
    for text in ["", "a", "b", "ab", "c", "x\ny", "xzy", "x.y", "q.", "^", "$", ".", "ca"]:
        assert bool(translated.fullmatch(text)) == bool(re.fullmatch(pattern, text)), text
