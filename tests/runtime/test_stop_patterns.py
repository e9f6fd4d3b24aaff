"""Patterns that end an output, against brute force over all substrings, however the text comes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.detokenizer.incremental import IncrementalDetokenizer
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import FinishReason
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.ends import EndMatcher
from espalier.runtime.stop_patterns import (
    MAX_PATTERN_BYTES,
    MAX_PATTERNS,
    WINDOW_BYTES,
    StopPatterns,
    StopSearch,
)

PATTERNS = ["ab+", "(a|b)+c", "a.b", "[^a]{2}a", "(a+)+b", "b|abc", "漢.?a", "é+", "(?:ab){1,3}c"]
SOME_PATTERNS = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(tuple)
TEXT = st.text("abc漢é\n", max_size=24)


def expected(patterns: Sequence[str], text: str) -> tuple[int, int] | None:
    """Of all matches the one that ends first, then the one that begins first; in bytes."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if any(re.fullmatch(pattern, text[start:end]) for pattern in patterns):
                return len(text[:start].encode()), len(text[:end].encode())
    return None


def cut(data: st.DataObject, whole: bytes) -> list[bytes]:
    """Anywhere, inside characters too."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@settings(deadline=None)
@given(SOME_PATTERNS, TEXT, st.data())
def test_the_match_is_the_same_however_the_text_comes(
    patterns: tuple[str, ...], text: str, data: st.DataObject
) -> None:
    search = StopSearch(StopPatterns(patterns))
    whole, found = text.encode(), None
    for piece in cut(data, whole):
        if found := search.push(piece):
            break
    match = expected(patterns, text)
    assert (match is None) == (found is None)
    if found is not None and match is not None:
        assert (found[0].start, found[0].end) == match
        assert found[1] == whole[slice(*match)]


@settings(deadline=None)
@given(SOME_PATTERNS, TEXT, st.integers(0, 4), st.data())
def test_nothing_is_streamed_that_is_cut_off_later(
    patterns: tuple[str, ...], text: str, min_new_tokens: int, data: st.DataObject
) -> None:
    """Scheduler and detokenizer agree, also where matches before `min_new_tokens` pass."""
    tokens = cut(data, text.encode())
    params = SamplingParams(
        max_new_tokens=len(tokens),
        min_new_tokens=min(min_new_tokens, len(tokens)),
        stop_regex=patterns,
    )
    ends = EndMatcher(params, (), tokens.__getitem__)
    detokenizer = IncrementalDetokenizer(tokens.__getitem__, (), patterns)
    streamed, pending, end = "", list[int](), ends.so_far(FinishReason(kind="abort"))
    for token_id in range(len(tokens)):
        pending.append(token_id)
        if found := ends.push(token_id):
            end = found
            break
        if data.draw(st.booleans()):
            streamed += detokenizer.push(pending)
            pending.clear()
    whole = b"".join(tokens)[: end.num_text_bytes].decode("utf-8", "replace")
    assert streamed + detokenizer.finish(end.num_text_bytes, pending) == whole


@settings(deadline=None)
@given(SOME_PATTERNS, TEXT)
def test_only_what_may_become_a_match_is_held(patterns: tuple[str, ...], text: str) -> None:
    held = StopPatterns(patterns).num_open(text.encode())
    if expected(patterns, text) is None and held:
        open_text = text.encode()[-held:].decode()
        endings = [a + b for a in ("", *"abcé漢x") for b in ("", *"abcé漢")]
        assert any(
            re.fullmatch(p, open_text + a + b) for p in patterns for a in endings for b in endings
        )


def test_text_is_held_back_no_further_than_the_window() -> None:
    detokenizer = IncrementalDetokenizer(lambda _: b"x" * 100, (), ("x[^y]*y",))
    streamed = sum(len(detokenizer.push([0])) for _ in range(100))
    assert 10_000 - WINDOW_BYTES - 100 <= streamed <= 10_000 - WINDOW_BYTES


def test_matches_are_as_long_as_the_window_at_most() -> None:
    for num_between, is_found in ((WINDOW_BYTES - 1, True), (WINDOW_BYTES, False)):
        search = StopSearch(StopPatterns(("a[^y]*y",)))
        assert search.push(b"a") is None and search.push(b"x" * num_between) is None
        assert (search.push(b"y") is not None) == is_found


def test_a_stop_string_and_a_pattern_the_one_that_ends_first_wins() -> None:
    params = SamplingParams(stop=("bcd",), stop_regex=("[a-c]c",))
    ends = EndMatcher(params, (), [b"a", b"bcd"].__getitem__)
    assert ends.push(0) is None
    end = ends.push(1)
    assert end is not None and (end.reason.matched, end.num_text_bytes) == ("bc", 1)
    assert end.num_kept_tokens == 1


@pytest.mark.parametrize("pattern", ["(a+)+x", "(a|a)*x", "(.*)*x", "[ab]*a[ab]{200}x"])
def test_no_pattern_makes_a_text_slow(pattern: str) -> None:
    """A backtracking engine would not come back from the first three."""
    search = StopSearch(StopPatterns((pattern,)))
    assert all(search.push(b"ab" * 20 + b"a" * 40) is None for _ in range(60))


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (("(",), "pattern 0: at position 1"),
        (("ok", "a**"), "pattern 1"),
        (("^a",), "not supported"),
        (("a$",), "not supported"),
        (("(?=a)a",), "not supported"),
        ((r"\bx",), "word boundaries"),
        ((r"(a)\1",), "at position"),
        (("",), "the empty text"),
        (("a*",), "the empty text"),
        ((r"[^\s\S]",), "no text at all"),
        (("x" * (MAX_PATTERN_BYTES + 1),), f"{MAX_PATTERN_BYTES} bytes"),
        (("a{1001}",), "1000"),
        (("(a{100}){100}",), "1000"),
        (("(.{30}b){30}",) * MAX_PATTERNS, "too large"),
        (("(" * 127 + "a" + ")" * 127,), "pattern 0"),
        (("\ud800",), "pattern 0"),
        (("a",) * (MAX_PATTERNS + 1), f"at most {MAX_PATTERNS}"),
        ((5,), "str"),
    ],
)
def test_what_is_refused(patterns: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as refused:
        SamplingParams(stop_regex=patterns).validate(100)
    assert refused.value.param == "stop_regex"


def test_the_longest_pattern_that_is_allowed_works() -> None:
    text = b"0123456789abcdef" * (MAX_PATTERN_BYTES // 16)
    search = StopSearch(StopPatterns((text.decode(),)))
    assert search.push(b"0" + text[:-1]) is None
    assert search.push(text[-1:]) is not None
