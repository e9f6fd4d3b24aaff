"""Text comes out byte for byte as whole-string decoding gives it, and never too early."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.detokenizer.incremental import IncrementalDetokenizer

ALPHABET = "abAB <|é漢😀\u0301\u200d\n\ufffd"
TEXT = st.text(ALPHABET, max_size=20) | st.text(max_size=12)
STOPS = st.lists(st.text("ab<é漢", min_size=1, max_size=4), max_size=4).map(tuple)


@st.composite
def token_bytes(draw: st.DrawFn) -> list[bytes]:
    """Tokens: text cut anywhere, inside characters too, and now and then wild bytes."""
    parts = draw(st.lists(TEXT.map(str.encode) | st.binary(max_size=4), max_size=8))
    data = b"".join(parts)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def detokenizer(tokens: Sequence[bytes], stops: tuple[str, ...] = ()) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(tokens.__getitem__, stops)


def pushes(draw: Any, num_tokens: int) -> list[range]:
    cuts = sorted(draw.draw(st.lists(st.integers(0, num_tokens), max_size=6)))
    return [range(a, b) for a, b in zip([0, *cuts], [*cuts, num_tokens], strict=True)]


def longest_beginning(text: bytes, stops: Sequence[bytes]) -> int:
    """Length of the longest end of `text` that begins a stop without being all of it."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )


@settings(deadline=None)
@given(token_bytes(), STOPS, st.data())
def test_deltas_are_the_whole_text(
    tokens: list[bytes], stops: tuple[str, ...], data: st.DataObject
) -> None:
    whole = b"".join(tokens)
    incremental = detokenizer(tokens, stops)
    text = ""
    for ids in pushes(data, len(tokens)):
        text += incremental.push(ids)
        assert whole.decode("utf-8", "replace").startswith(text)
    assert text + incremental.finish(len(whole)) == whole.decode("utf-8", "replace")


@settings(deadline=None)
@given(token_bytes(), STOPS.filter(len), st.data())
def test_no_part_of_a_stop_is_given_out_early(
    tokens: list[bytes], stops: tuple[str, ...], data: st.DataObject
) -> None:
    """The end may fall at every stop that the last tokens complete, and all before it is out."""
    encoded = [stop.encode() for stop in stops]
    incremental = detokenizer(tokens, stops)
    text, seen = "", b""
    for ids in pushes(data, len(tokens)):
        old_len = len(seen)
        seen += b"".join(tokens[i] for i in ids)
        text += incremental.push(ids)
        starts = [
            i
            for stop in encoded
            for i in range(max(0, old_len - len(stop) + 1), len(seen))
            if seen.startswith(stop, i) and i + len(stop) > old_len
        ]
        if len(seen) > old_len:
            safe = min([len(seen) - longest_beginning(seen, encoded), *starts])
            # Everything safe is out, but for a character that is not whole yet.
            expected = seen[:safe].decode("utf-8", "replace")
            assert expected.startswith(text)
            assert len(expected) - len(text) <= 1
        if starts:
            end = data.draw(st.sampled_from(starts))
            assert text + incremental.finish(end) == seen[:end].decode("utf-8", "replace")
            return
    assert text + incremental.finish(len(seen)) == seen.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("tokens", "stops", "deltas"),
    [
        (["Hel", "lo"], (), ["Hel", "lo"]),
        (["a\n", "\nb"], ("\n\n",), ["a", ""]),  # a stop across two tokens
        (["a\n", "b"], ("\n\n",), ["a", "\nb"]),  # released when it turns out not to be one
        (["a<", "|", "x"], ("<|end|>",), ["a", "", "<|x"]),
        (["xEND.", "y"], ("END",), ["x", "END.y"]),  # the scheduler went on: released
        (["abc", "d"], ("b", "abcd"), ["", ""]),
        (["abcx", "y"], ("abcd", "b"), ["a", "bcxy"]),  # a stop inside the beginning of one
        (["ab", "ab", "ac"], ("abac",), ["", "ab", ""]),  # falls back to a shorter beginning
    ],
)
def test_holding_back(tokens: list[str], stops: tuple[str, ...], deltas: list[str]) -> None:
    incremental = detokenizer([token.encode() for token in tokens], stops)
    assert [incremental.push([i]) for i in range(len(tokens))] == deltas


def test_half_a_character_waits_and_is_replaced_only_at_the_end() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    incremental = detokenizer([b"a" + first, second, first])
    assert [incremental.push([0]), incremental.push([1]), incremental.push([2])] == ["a", "é", ""]
    assert incremental.finish(4) == "\ufffd"


def test_tokens_without_text_change_nothing() -> None:
    incremental = detokenizer([b"a<", b"", b"b"], ("<|",))
    assert [incremental.push([0]), incremental.push([1]), incremental.push([])] == ["a", "", ""]
    assert incremental.push([2]) == "<b"
    assert incremental.finish(3) == ""


def test_end_beyond_the_text_is_a_programming_error() -> None:
    incremental = detokenizer([b"abc"])
    incremental.push([0])
    with pytest.raises(AssertionError):
        incremental.finish(4)
    with pytest.raises(AssertionError):
        incremental.finish(2)


def lines_run(tokens: list[bytes], stops: tuple[str, ...]) -> int:
    """Lines of the detokenizer's code that run for `tokens`, one push each."""
    incremental = detokenizer(tokens, stops)
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line" and "detokenizer" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for i in range(len(tokens)):
            incremental.push([i])
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("stops", [(), ("aab",), ("a" * 200 + "b", "a" * 150 + "c")])
def test_work_is_linear(stops: tuple[str, ...]) -> None:
    """Also for text that is all but a stop at every place."""
    short, long = (lines_run([b"aaa"] * n, stops) for n in (500, 2000))
    assert long <= 4.1 * short
    assert long / 2000 < 60


@given(token_bytes(), STOPS, st.data())
def test_the_last_tokens_may_reach_beyond_the_text(
    tokens: list[bytes], stops: tuple[str, ...], data: st.DataObject
) -> None:
    """As where a stop token has text of its own, which is no part of the output."""
    incremental = detokenizer([*tokens, b"stop!"], stops)
    whole = b"".join(tokens)
    text = "".join(incremental.push(ids) for ids in pushes(data, len(tokens)))
    text += incremental.finish(len(whole), [len(tokens)])
    assert text == whole.decode("utf-8", "replace")
